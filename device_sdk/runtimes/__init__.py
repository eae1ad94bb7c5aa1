"""Inference runtimes behind one port. To add one: a file here, a line in ``RUNTIMES``, the conformance tests."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from device_sdk.bundles.runnable import RunsOn
from device_sdk.errors import UsageError
from device_sdk.runtimes.executorch import ExecutorchRuntime
from device_sdk.runtimes.homes import HomesRuntime
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch, MakeRuntime, Runtime
from device_sdk.runtimes.processor_homes import required_cores
from device_sdk.supernet.home import PROVIDERS, Home

RUNTIMES: dict[str, MakeRuntime] = {
    "executorch": ExecutorchRuntime,
    "onnxruntime": OnnxRuntime,
}
USUAL = "onnxruntime"  # the runtime of those who name none


def make_runtime(
    name: str = USUAL,
    *,
    threads: int,
    provider: str | None = None,
    lean: bool = False,
    spin_us: int = 0,
    cache_folder: Path | None = None,
    homes: Sequence[Home] = (),
    provider_options: Mapping[str, Mapping[str, str]] | None = None,
) -> Runtime:
    """The runtime registered as ``name``, on ``provider`` or its default provider, or at ``homes``.

    ``lean``: hold as little memory between runs as possible; for plans under a memory cap. ``spin_us``: how long
    threads wait for work on the processor before they sleep, in microseconds. ``cache_folder``: for models that the
    runtime compiles for this device. ``homes``: instead of ``threads`` and ``provider``; the first is the usual one.
    ``provider_options``: by either name of a provider.

    Raises:
        UsageError: there is no such runtime, it has no homes, or ``spin_us`` is out of its range.
        MissingExtraError: it is not installed.
        RuntimeFailedError: it has no such provider here.
    """
    made, options = runtime_named(name), provider_options or {}
    if homes and name != USUAL:
        raise UsageError(f"{name} has no homes to choose from", hint=f"homes are of {USUAL}")

    def at(provider: str, threads: int, cores: Sequence[int] = ()) -> Runtime:
        own = {
            key: value
            for name, given in options.items()
            if PROVIDERS.get(name, name) == provider
            for key, value in given.items()
        }
        more: dict[str, Any] = {"provider_options": own} if own else {}
        more |= {"cores": cores} if cores else {}
        return made(threads=threads, provider=provider, lean=lean, spin_us=spin_us, cache_folder=cache_folder, **more)

    if homes:
        settings = (f"-spin{spin_us}us" if spin_us else "") + ("-lean" if lean else "")
        runtimes = {home: at(PROVIDERS[home.provider], home.threads, required_cores(home)) for home in homes}
        return HomesRuntime(runtimes, f"{name}-{importlib.metadata.version(name)}{settings}")
    return at(provider or made.providers[0], threads)


def runs_on(name: str = USUAL, provider: str | None = None, *, homes: Sequence[Home] = ()) -> RunsOn:
    """A filter for the renditions that runtime ``name`` runs on ``provider``, its default provider, or at ``homes``."""
    made = runtime_named(name)
    providers = [PROVIDERS[home.provider] for home in homes] or [provider or made.providers[0]]
    return RunsOn(made.reads, frozenset(providers))


def runtime_named(name: str) -> MakeRuntime:
    """The runtime registered as ``name`` (UsageError)."""
    if name not in RUNTIMES:
        raise UsageError(f"there is no runtime {name}", hint="known: " + ", ".join(sorted(RUNTIMES)))
    return RUNTIMES[name]


__all__ = [
    "RUNTIMES",
    "USUAL",
    "Array",
    "ExecutorchRuntime",
    "LoadedStretch",
    "MakeRuntime",
    "OnnxRuntime",
    "Runtime",
    "make_runtime",
    "runs_on",
    "runtime_named",
]
