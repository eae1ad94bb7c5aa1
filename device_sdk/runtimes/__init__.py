"""Inference runtimes behind one port. To add one: a file here, a line in ``RUNTIMES``, the conformance tests."""

from __future__ import annotations

from pathlib import Path

from device_sdk.bundles.runnable import RunsOn
from device_sdk.errors import UsageError
from device_sdk.runtimes.executorch import ExecutorchRuntime
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch, MakeRuntime, Runtime

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
    made = runtime_named(name)
    provider = provider or made.providers[0]
    return made(threads=threads, provider=provider, lean=lean, spin_us=spin_us, cache_folder=cache_folder)


def runs_on(name: str = USUAL, provider: str | None = None) -> RunsOn:
    """A filter for the renditions that runtime ``name`` runs on ``provider`` or its default provider."""
    made = runtime_named(name)
    return RunsOn(made.reads, provider or made.providers[0])


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
