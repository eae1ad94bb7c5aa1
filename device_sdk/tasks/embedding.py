"""A vector for each sample, by which samples are compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.tasks.port import Predictions, ScoredAlone, Scores, Targets

_TINY = 1e-12


class Similarity(ScoredAlone):
    """The mean cosine similarity to the wanted vectors, opposite ones counting as 0. Implements the port.

    Answers and targets: [count, values], of any length above 0.
    """

    name = "cosine similarity"

    def __init__(self, classes: int) -> None:
        """``classes``: an embedding has none."""

    def checked(self, targets: object, count: int) -> Targets:
        """See the port."""
        array = np.asarray(targets)
        if array.ndim != 2 or len(array) != count or array.dtype.kind != "f":
            raise InputError(f"targets must be vectors [{count}, values], got {array.dtype} {array.shape}")
        if not np.isfinite(array).all():
            raise InputError("targets must be finite")
        return array.astype(np.float32)

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port."""
        cosines = (_unit(answers) * _unit(targets)).sum(axis=1)
        return np.clip(cosines, 0.0, 1.0).astype(np.float32)

    def stand_in(self, answers: Array) -> Targets:
        """See the port."""
        return np.array(answers)

    def predictions(self, answers: Array, class_names: Sequence[str]) -> Predictions:
        """See the port: none; the answer is the vector itself."""
        return [()] * len(answers)

    def compared(self, answers: Array) -> Array:
        """See the port."""
        return _unit(answers)


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY))
