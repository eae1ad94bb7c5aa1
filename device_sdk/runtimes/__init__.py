"""Inference runtimes behind one port. A new one: a file here, a line in ``RUNTIMES``, the conformance tests."""

from __future__ import annotations

from collections.abc import Callable

from device_sdk.errors import UsageError
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime

RUNTIMES: dict[str, Callable[..., Runtime]] = {
    "onnxruntime": OnnxRuntime,
}


def make_runtime(name: str, *, threads: int, provider: str | None = None) -> Runtime:
    """The runtime called ``name``, on ``provider`` or else on what it always has.

    Raises:
        UsageError: there is no such runtime.
        RuntimeFailedError: it has no such provider here.
    """
    if name not in RUNTIMES:
        raise UsageError(f"there is no runtime {name}", hint="known: " + ", ".join(sorted(RUNTIMES)))
    return RUNTIMES[name](threads=threads, **({} if provider is None else {"provider": provider}))


__all__ = ["RUNTIMES", "Array", "LoadedStretch", "OnnxRuntime", "Runtime", "make_runtime"]
