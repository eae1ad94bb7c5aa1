"""Answers of a chip's NPU, from the emulator in its maker's library. Its latencies mean nothing."""

from __future__ import annotations

from packager.errors import NotDelegatedError
from packager.npu.chips import Chip
from packager.npu.compiler import Array, Compiler


def emulated(compiler: Compiler, model: bytes, inputs: Array, *, chip: Chip) -> Array:
    """Answers [count, …] of ``model``, of one input and one output, to ``inputs`` [count, …], sample by sample.

    Raises:
        NotDelegatedError: the model does not compile for the chip, or does not run.
    """
    outcome = compiler.compiled(model, chip, inputs)
    if outcome.answers is None:
        raise NotDelegatedError(
            f"{chip.name} does not run the model: {outcome.failure}", hint="package for another chip, or for the CPU"
        )
    return outcome.answers
