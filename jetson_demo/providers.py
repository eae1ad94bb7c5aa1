"""Which of ONNX Runtime's execution providers runs the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pathweave import AdaptiveModel, RuntimeFailedError, SelfTestError

# The short names of the command line; every other name is passed on as it is.
SHORT_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}

# Tried in this order unless one is asked for. Not TensorRT: it builds an engine for every block first.
PREFERRED = (SHORT_NAMES["cuda"], SHORT_NAMES["cpu"])


def available_providers() -> tuple[str, ...]:
    """What this build of ONNX Runtime has; whether it works here shows when a model loads."""
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def to_try(wanted: str | None, available: Sequence[str]) -> tuple[str, ...]:
    """The providers to try, in order: the one that is wanted, else those preferred that are there."""
    if wanted is not None:
        return (SHORT_NAMES.get(wanted.lower(), wanted),)
    return tuple(provider for provider in PREFERRED if provider in available)


def open_on_first(
    open_on: Callable[[str], AdaptiveModel], providers: Sequence[str], *, on_failed: Callable[[str, str], None]
) -> tuple[AdaptiveModel, str]:
    """The model on the first provider that works, and which one that is; ``on_failed`` hears of those before it.

    Raises:
        RuntimeFailedError, SelfTestError: the last one does not work either.
    """
    for provider in providers[:-1]:
        try:
            return open_on(provider), provider
        except (RuntimeFailedError, SelfTestError) as error:
            on_failed(provider, str(error))
    return open_on(providers[-1]), providers[-1]
