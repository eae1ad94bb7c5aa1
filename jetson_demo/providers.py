"""Choice of ONNX Runtime's execution provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pathweave import AdaptiveModel
from pathweave.errors import RuntimeFailedError, SelfTestError

# The short names of the command line; other names are passed on unchanged.
SHORT_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}

# The default order. Without TensorRT, which would build an engine for every block first.
PREFERRED = (SHORT_NAMES["cuda"], SHORT_NAMES["cpu"])


def available_providers() -> tuple[str, ...]:
    """The providers of this ONNX Runtime build. Whether one works here only shows when a model is loaded."""
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def to_try(wanted: str | None, available: Sequence[str]) -> tuple[str, ...]:
    """The providers to try, in order: ``wanted``, or else the preferred ones that are available."""
    if wanted is not None:
        return (SHORT_NAMES.get(wanted.lower(), wanted),)
    return tuple(provider for provider in PREFERRED if provider in available)


def open_on_first(
    open_on: Callable[[str], AdaptiveModel], providers: Sequence[str], *, on_failed: Callable[[str, str], None]
) -> tuple[AdaptiveModel, str]:
    """The model on the first working provider, and that provider. ``on_failed`` is called for those that fail.

    Raises:
        RuntimeFailedError, SelfTestError: all providers failed.
    """
    for provider in providers[:-1]:
        try:
            return open_on(provider), provider
        except (RuntimeFailedError, SelfTestError) as error:
            on_failed(provider, str(error))
    return open_on(providers[-1]), providers[-1]
