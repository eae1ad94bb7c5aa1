"""Any number of labels for each sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.tasks.port import Prediction, Predictions, ScoredAlone, Scores, Targets, integers, logistic


class LabelsFound(ScoredAlone):
    """The harmonic mean of precision and recall over all labels of all samples (micro F1). Implements the port.

    Answers: a logit for each label [count, labels], which is there above 0; targets: 1 where a label is there, else 0
    [count, labels]. A sample's own score is its own F1, 1 where nothing is and nothing was found.
    """

    name = "F1"

    def __init__(self, classes: int) -> None:
        self._labels = classes

    def checked(self, targets: object, count: int) -> Targets:
        """See the port."""
        there = integers(targets, (count, self._labels), f"targets must be 0 or 1 for each label [{count}, labels]")
        if not ((there == 0) | (there == 1)).all():
            raise InputError("targets must be 1 where a label is there, else 0")
        return there

    def of(self, answers: Array, targets: Targets) -> float:
        """See the port."""
        return float(_f1(answers.reshape(1, -1) > 0, targets.reshape(1, -1) > 0)[0])

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port."""
        return _f1(answers > 0, targets > 0)

    def stand_in(self, answers: Array) -> Targets:
        """See the port."""
        return np.asarray(answers > 0, dtype=np.int64)

    def predictions(self, answers: Array, class_names: Sequence[str]) -> Predictions:
        """See the port: the labels that are there, the surest first."""
        return [
            tuple(
                Prediction(class_names[at], float(logistic(row[at])))
                for at in np.argsort(-row, kind="stable")
                if row[at] > 0
            )
            for row in answers
        ]

    def compared(self, answers: Array) -> Array:
        """See the port."""
        return answers


def _f1(found: Array, there: Array) -> Scores:
    """[count], of masks [count, labels]."""
    matched, both = (found & there).sum(axis=1), found.sum(axis=1) + there.sum(axis=1)
    return np.where(both > 0, 2 * matched / np.maximum(both, 1), 1.0).astype(np.float32)
