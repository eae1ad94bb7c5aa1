"""One class for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.port import confidence
from device_sdk.tasks.margins import Floats, label_margins, margin_scale
from device_sdk.tasks.port import Prediction, Predictions, Scores, Targets, integers


class Accuracy:
    """The share of samples with the right class. Implements the port.

    Answers: logits [count, classes]; targets: classes [count].
    """

    name = "accuracy"
    classifies: ClassVar[bool] = True

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def checked(self, targets: object, count: int) -> Targets:
        """See the port."""
        labels = integers(targets, (count,), "labels must be class indices [count]")
        if len(labels) and not (labels.min() >= 0 and labels.max() < self._classes):
            raise InputError(f"labels must lie between 0 and {self._classes - 1}")
        return labels

    def of(self, answers: Array, targets: Targets) -> float:
        """See the port."""
        return float(self.scores(answers, targets).mean())

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port: 1 for the right class, else 0."""
        return np.asarray(answers.argmax(axis=-1) == targets, dtype=np.float32)

    def margins(self, answers: Array, targets: Targets) -> Scores:
        """See the port: the logit of the label minus the largest of the others."""
        return label_margins(answers, targets)

    def margin_scale(self, full_model_margins: Floats, count: int) -> float:
        """See the port."""
        return margin_scale(full_model_margins, count)

    def stand_in(self, answers: Array) -> Targets:
        """See the port."""
        return np.asarray(answers.argmax(axis=-1))

    def predictions(self, answers: Array, class_names: Sequence[str]) -> Predictions:
        """See the port: the most probable class; none where logits are not numbers."""
        with np.errstate(invalid="ignore"):  # infinite logits
            certain = confidence(answers)
        return [
            (Prediction(class_names[at], float(sure)),) if np.isfinite(sure) else ()
            for at, sure in zip(answers.argmax(axis=1), certain, strict=True)
        ]

    def compared(self, answers: Array) -> Array:
        """See the port: logits shifted to a mean of 0, which leaves the probabilities unchanged."""
        return np.asarray(answers - answers.mean(axis=-1, keepdims=True))
