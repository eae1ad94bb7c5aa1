"""Numbers for each sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.tasks.port import Prediction, Predictions, ScoredAlone, Scores, Targets

_TINY = 1e-12  # of two values that are 0 alike


class RelativeAgreement(ScoredAlone):
    """1 less the symmetric mean absolute percentage error: |answer − target| / (|answer| + |target|), on average.

    Implements the port. Answers and targets: [count, values]. Scale and unit of the values do not matter.
    """

    name = "1 − sMAPE"

    def __init__(self, classes: int) -> None:
        self._values = classes

    def checked(self, targets: object, count: int) -> Targets:
        """See the port; of one value, [count] also does."""
        array = np.asarray(targets)
        if array.shape == (count,) and self._values == 1:
            array = array[:, np.newaxis]
        if array.shape != (count, self._values) or array.dtype.kind not in "fiu":
            wanted = f"targets must be numbers [{count}, {self._values}]"
            raise InputError(f"{wanted}, got {array.dtype} {array.shape}")
        if not np.isfinite(array).all():
            raise InputError("targets must be finite")
        return array.astype(np.float32)

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port."""
        apart = np.abs(answers - targets) / np.maximum(np.abs(answers) + np.abs(targets), _TINY)
        return (1 - apart.mean(axis=1)).astype(np.float32)

    def stand_in(self, answers: Array) -> Targets:
        """See the port."""
        return np.array(answers)

    def predictions(self, answers: Array, class_names: Sequence[str]) -> Predictions:
        """See the port: the numbers, in their order."""
        return [
            tuple(Prediction(name, value=float(one)) for name, one in zip(class_names, row, strict=True))
            for row in answers
        ]

    def compared(self, answers: Array) -> Array:
        """See the port."""
        return answers
