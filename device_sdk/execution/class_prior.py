"""Logits corrected by the mix of classes on this device. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from device_sdk.runtimes.port import Array, LoadedStretch, StopSignal
from device_sdk.supernet.plan import Prior


def logit_offsets(prior: Prior) -> Array:
    """Offset of each class's logit under ``prior``: float32 [classes]."""
    return np.asarray(prior.temperature * np.array(prior.log_ratios), dtype=np.float32)


@overload
def corrected(logits: Array, prior: Prior | None) -> Array: ...
@overload
def corrected(logits: Array | None, prior: Prior | None) -> Array | None: ...
def corrected(logits: Array | None, prior: Prior | None) -> Array | None:
    """``logits`` [..., classes] under ``prior``; the same array without one, None where there are none."""
    return logits if logits is None or prior is None else logits + logit_offsets(prior)


class CorrectedStretch:
    """A stretch whose last output is logits, under a prior. Implements the port."""

    def __init__(self, stretch: LoadedStretch, prior: Prior) -> None:
        self._stretch, self._offsets = stretch, logit_offsets(prior)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        return self._corrected(self._stretch.run(inputs))

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port."""
        outputs = self._stretch.run_until(inputs, stop)
        return None if outputs is None else self._corrected(outputs)

    def close(self) -> None:
        """See the port."""
        self._stretch.close()

    def _corrected(self, outputs: list[Array]) -> list[Array]:
        return [*outputs[:-1], outputs[-1] + self._offsets]
