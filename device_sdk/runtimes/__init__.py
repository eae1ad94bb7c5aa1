"""Inference runtimes behind one port. To add one: a file here, a line in ``RUNTIMES``, the conformance tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from device_sdk.bundles.runnable import RunsOn
from device_sdk.errors import UsageError
from device_sdk.runtimes.executorch import ExecutorchRuntime
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime

RUNTIMES: dict[str, Callable[..., Runtime]] = {
    "executorch": ExecutorchRuntime,
    "onnxruntime": OnnxRuntime,
}


def make_runtime(
    name: str,
    *,
    threads: int,
    provider: str | None = None,
    lean: bool = False,
    spin_us: int = 0,
    cache_folder: Path | None = None,
) -> Runtime:
    """The runtime registered as ``name``, on ``provider`` or its default provider.

    ``lean``: hold as little memory between runs as possible; for plans under a memory cap. ``spin_us``: how long
    threads wait for work on the processor before they sleep, in microseconds. ``cache_folder``: for models that the
    runtime compiles for this device.

    Raises:
        UsageError: there is no such runtime, or ``spin_us`` is out of its range.
        MissingExtraError: it is not installed.
        RuntimeFailedError: it has no such provider here.
    """
    if name not in RUNTIMES:
        raise UsageError(f"there is no runtime {name}", hint="known: " + ", ".join(sorted(RUNTIMES)))
    settings = {"provider": provider, "lean": lean, "spin_us": spin_us, "cache_folder": cache_folder}
    return RUNTIMES[name](threads=threads, **{key: value for key, value in settings.items() if value})


_PLAIN_PROVIDERS = {"onnxruntime": "CPUExecutionProvider"}


def runs_on(name: str, provider: str | None = None) -> RunsOn:
    """A filter for the renditions that runtime ``name`` runs on ``provider`` or its default provider."""
    return RunsOn(name, provider or _PLAIN_PROVIDERS.get(name))


__all__ = [
    "RUNTIMES",
    "Array",
    "ExecutorchRuntime",
    "LoadedStretch",
    "OnnxRuntime",
    "Runtime",
    "make_runtime",
    "runs_on",
]
