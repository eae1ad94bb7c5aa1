"""One class for each pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.data.unlabelled import IGNORED
from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.tasks.port import (
    Prediction,
    Predictions,
    ScoredAlone,
    Scores,
    Targets,
    compared_places,
    integers,
    spread,
)

_MOST_POINTS = 64  # along each side of a map, of those by which one sample is scored

Positions = npt.NDArray[np.float64]


class MeanIoU(ScoredAlone):
    """The mean intersection over union of the classes. Implements the port.

    Answers: logits [count, classes, rows, columns]; targets: maps of classes [count, height, width]. Pixels of
    ``IGNORED`` do not count, nor classes that neither the answers nor the targets have. Answers of another resolution
    are interpolated. A sample's own score is that of at most 64 × 64 of its pixels, evenly spread: alike for answers of
    all resolutions, and quick.
    """

    name = "mIoU"

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def checked(self, targets: object, count: int) -> Targets:
        """See the port."""
        maps = integers(targets, (count, None, None), "targets must be maps of class indices [count, height, width]")
        known = (maps >= 0) & (maps < self._classes) | (maps == IGNORED)
        if not known.all():
            raise InputError(f"pixels must lie between 0 and {self._classes - 1}, or be {IGNORED}")
        return maps

    def of(self, answers: Array, targets: Targets) -> float:
        """See the port."""
        pairs = np.zeros((self._classes, self._classes), dtype=np.int64)  # [wanted, found]
        for answer, wanted in zip(answers, targets, strict=True):
            found = interpolated(answer, wanted.shape).argmax(axis=0)
            counted = wanted != IGNORED
            places = wanted[counted].astype(np.int64) * self._classes + found[counted]
            pairs += np.bincount(places, minlength=pairs.size).reshape(pairs.shape)
        return float(_mean_iou(pairs[None])[0])

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port: the mean IoU of the classes that a sample or its answer has."""
        rows, columns = (spread(extent, _MOST_POINTS) for extent in targets.shape[1:])
        wanted = targets[:, rows][:, :, columns].astype(np.int64)
        height, width = targets.shape[1:]
        found = at_points(answers, (rows + 0.5) / height, (columns + 0.5) / width).argmax(axis=1)
        counted = wanted != IGNORED
        sample = np.broadcast_to(np.arange(len(answers))[:, None, None], wanted.shape)
        places = (sample[counted] * self._classes + wanted[counted]) * self._classes + found[counted]
        pairs = np.bincount(places, minlength=len(answers) * self._classes**2)
        return _mean_iou(pairs.reshape(len(answers), self._classes, self._classes))

    def stand_in(self, answers: Array) -> Targets:
        """See the port."""
        return np.asarray(answers.argmax(axis=1))

    def predictions(self, answers: Array, class_names: Sequence[str]) -> Predictions:
        """See the port: the classes of the pixels, the largest first."""
        found: Predictions = []
        for classes in answers.argmax(axis=1):
            shares = np.bincount(classes.ravel(), minlength=len(class_names)) / classes.size
            order = np.argsort(-shares, kind="stable")
            found.append(tuple(Prediction(class_names[at], share=float(shares[at])) for at in order if shares[at] > 0))
        return found

    def compared(self, answers: Array) -> Array:
        """See the port."""
        return compared_places(answers)


def _mean_iou(pairs: npt.NDArray[np.int64]) -> Scores:
    """[count], of counts of pixels [count, wanted class, found class]; 0 without any pixel."""
    shared = np.diagonal(pairs, axis1=1, axis2=2)
    union = pairs.sum(axis=1) + pairs.sum(axis=2) - shared
    ratios = np.where(union > 0, shared / np.maximum(union, 1), 0.0)
    return np.asarray(ratios.sum(axis=1) / np.maximum((union > 0).sum(axis=1), 1), dtype=np.float32)


def interpolated(answer: Array, size: tuple[int, ...]) -> Array:
    """[channels, rows, columns] at another size: bilinear, pixels as areas (torch's ``align_corners=False``)."""
    if answer.shape[1:] == tuple(size):
        return answer
    height, width = ((np.arange(extent) + 0.5) / extent for extent in size)
    return at_points(answer[None], height, width)[0]


def at_points(answers: Array, rows: Positions, columns: Positions) -> Array:
    """Maps [count, channels, own rows, own columns] at a grid of points: [count, channels, rows, columns].

    ``rows``, ``columns``: in shares of the height and the width, 0 to 1. Bilinear, pixels as areas.
    """
    for axis, places in ((2, rows), (3, columns)):
        own = answers.shape[axis]
        place = np.clip(places * own - 0.5, 0, own - 1)
        low = place.astype(np.int64)
        high = np.minimum(low + 1, own - 1)
        weight = (place - low).astype(np.float32).reshape((-1, 1) if axis == 2 else (-1,))
        answers = answers.take(low, axis) * (1 - weight) + answers.take(high, axis) * weight
    return answers
