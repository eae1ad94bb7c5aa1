"""The port of tasks on a device: how answers are compared with targets and with each other, and how they count. Pure.

Without targets, the answers of the model as it is stand in, so that a score is an agreement. Scores are 0 to 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.tasks.margins import Floats, score_margins

Targets = npt.NDArray[Any]
Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Prediction:
    """One thing that an answer says about a sample: ``label``, and what its task has of the others.

    ``confidence``: a probability, of a class, a label or a box; ``share``: of a map's pixels, 0 to 1; ``value``: a
    number; ``box``: left, top, right and bottom in shares of the image; ``tokens``: the first of a span, and the one
    behind it.
    """

    label: str
    confidence: float | None = None
    share: float | None = None
    value: float | None = None
    box: tuple[float, float, float, float] | None = None
    tokens: tuple[int, int] | None = None


Predictions = list[tuple[Prediction, ...]]
"""Of each sample."""


class AnswerTask(Protocol):
    """One task: answers [count, *output] and targets [count, …].

    ``name``: of the score of many samples, as reports call it. ``classifies``: one class is right for each sample, so
    that priors of classes, exits and deciders apply.
    """

    name: str
    classifies: ClassVar[bool]

    def checked(self, targets: object, count: int) -> Targets:
        """``targets`` as an array for ``count`` samples (InputError)."""

    def of(self, answers: Array, targets: Targets) -> float:
        """The score of all samples together."""

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """The score of each sample [count]; their mean is what a search goes for."""

    def margins(self, answers: Array, targets: Targets) -> Scores:
        """Margins [count], by which the scores of samples like these are expected; above 0: more right than wrong."""

    def margin_scale(self, full_model_margins: Floats, count: int) -> float:
        """The scale of ``margins`` [count] on which ``tasks.margins.by_margin`` turns them into scores."""

    def stand_in(self, answers: Array) -> Targets:
        """Targets that these answers meet."""

    def predictions(self, answers: Array, class_names: Sequence[str]) -> Predictions:
        """Predictions of each answer; an empty tuple where it says nothing."""

    def compared(self, answers: Array) -> Array:
        """Values [count, values] whose distances say how much two answers differ."""


class ScoredAlone(ABC):
    """Common to tasks whose samples have scores between 0 and 1, and no margins of their own."""

    classifies: ClassVar[bool] = False

    @abstractmethod
    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port."""

    def of(self, answers: Array, targets: Targets) -> float:
        """See the port: the mean of the samples' scores."""
        return float(self.scores(answers, targets).mean())

    def margins(self, answers: Array, targets: Targets) -> Scores:
        """See the port."""
        return score_margins(self.scores(answers, targets))

    def margin_scale(self, full_model_margins: Floats, count: int) -> float:
        """See the port: scores count as they are."""
        return 1.0


def integers(targets: object, shape: tuple[int | None, ...], what: str) -> npt.NDArray[np.int64]:
    """``targets`` as integers of ``shape``, None for any extent (InputError with ``what`` is wanted)."""
    array = np.asarray(targets)
    fits = array.ndim == len(shape) and all(
        wanted in (None, extent) for wanted, extent in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in "iu":
        raise InputError(f"{what}, got {array.dtype} {array.shape}")
    return array.astype(np.int64)


def logistic(logits: Array) -> Array:
    """1 / (1 + e^−x), element by element."""
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


_PLACES = 16  # along each side of a map that are compared; of a smaller map some are the same


def compared_places(answers: Array) -> Array:
    """[count, values] of maps [count, channels, rows, columns] at some places, each place's centred to a mean of 0.

    As many of maps of any resolution.
    """
    rows, columns = (_places(extent, _PLACES) for extent in answers.shape[2:])
    some = answers[:, :, rows][:, :, :, columns]
    return np.asarray((some - some.mean(axis=1, keepdims=True)).reshape(len(answers), -1))


def spread(extent: int, most: int) -> npt.NDArray[np.int64]:
    """At most ``most`` positions, evenly spread over ``extent``, as centres of equal parts."""
    return _places(extent, min(extent, most))


def _places(extent: int, count: int) -> npt.NDArray[np.int64]:
    return np.asarray((np.arange(count) + 0.5) * extent / count, dtype=np.int64)
