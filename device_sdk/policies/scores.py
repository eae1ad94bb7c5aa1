"""Scores of answers against targets, by task: accuracy of classes, mIoU of maps, the share of boxes found. Pure.

The same measures as the packager's tasks use, but for maps, whose mean intersection over union is a figure of all
samples at once. Without targets, the answers of the model as it is stand in, so that a score is an agreement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.manifest import Task
from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array

IGNORED = 255  # the class of pixels without a label
_SIDES = 4  # channels of a detector's answer behind its classes
_OVERLAP = 0.5  # intersection over union of the same box
_MOST_BOXES = 100  # of one image that stand in

Targets = npt.NDArray[Any]


class Score(Protocol):
    """The port of scores: 0 to 1, of answers [count, *output] against targets [count, …]."""

    name: str

    def checked(self, targets: object, count: int) -> Targets:
        """``targets`` as an array for ``count`` samples (InputError)."""

    def of(self, answers: Array, targets: Targets) -> float:
        """The score of all samples together."""

    def stand_in(self, answers: Array) -> Targets:
        """Targets that these answers meet."""


class Accuracy:
    """The share of samples with the right class: logits [count, classes] against classes [count]."""

    name = "accuracy"

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def checked(self, targets: object, count: int) -> Targets:
        """See the port."""
        labels = _integers(targets, (count,), "labels must be class indices [count]")
        if len(labels) and not (labels.min() >= 0 and labels.max() < self._classes):
            raise InputError(f"labels must lie between 0 and {self._classes - 1}")
        return labels

    def of(self, answers: Array, targets: Targets) -> float:
        """See the port."""
        return float((answers.argmax(axis=1) == targets).mean())

    def stand_in(self, answers: Array) -> Targets:
        """See the port."""
        return np.asarray(answers.argmax(axis=1))


class MeanIoU:
    """The mean intersection over union of the classes.

    Answers: logits [count, classes, rows, columns]; targets: maps of classes [count, height, width]. Pixels of
    ``IGNORED`` do not count, nor classes that neither the answers nor the targets have. Answers of another resolution
    are interpolated.
    """

    name = "mIoU"

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def checked(self, targets: object, count: int) -> Targets:
        """See the port."""
        maps = _integers(targets, (count, None, None), "targets must be maps of class indices [count, height, width]")
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
        shared = np.diagonal(pairs)
        union = pairs.sum(axis=0) + pairs.sum(axis=1) - shared
        return float((shared[union > 0] / union[union > 0]).mean()) if union.any() else 0.0

    def stand_in(self, answers: Array) -> Targets:
        """See the port."""
        return np.asarray(answers.argmax(axis=1))


class BoxesFound:
    """The share of boxes whose centre cell has their class, and a box that overlaps them by a half.

    Answers [count, classes + 4, rows, columns] as the manifest's task says; targets [count, most, 5]: class, left, top,
    right and bottom in shares of the image; rows of class −1 are padding.
    """

    name = "boxes found"

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def checked(self, targets: object, count: int) -> Targets:
        """See the port."""
        boxes = np.asarray(targets)
        if boxes.ndim != 3 or boxes.shape[0] != count or boxes.shape[2] != 5 or boxes.dtype.kind not in "fiu":
            raise InputError(f"targets must be boxes [{count}, most, 5], got {boxes.dtype} {boxes.shape}")
        if not np.isfinite(boxes).all() or not ((boxes[..., 0] >= -1) & (boxes[..., 0] < self._classes)).all():
            raise InputError(f"boxes must be finite, with classes between 0 and {self._classes - 1}, or −1")
        return boxes.astype(np.float32)

    def of(self, answers: Array, targets: Targets) -> float:
        """See the port."""
        there = targets[..., 0] >= 0
        rows, columns = answers.shape[2:]
        y = ((targets[..., 2] + targets[..., 4]) / 2 * rows).astype(np.int64).clip(0, rows - 1)
        x = ((targets[..., 1] + targets[..., 3]) / 2 * columns).astype(np.int64).clip(0, columns - 1)
        numbers = np.arange(len(targets))[:, None]
        logits = answers[:, :-_SIDES]
        named = logits.argmax(axis=1)[numbers, y, x] == targets[..., 0]
        certain = logits.max(axis=1)[numbers, y, x] > 0
        near = overlap(boxes_of(answers)[numbers, :, y, x], targets[..., 1:]) >= _OVERLAP
        return float((named & certain & near & there).sum() / max(int(there.sum()), 1))

    def stand_in(self, answers: Array) -> Targets:
        """See the port. Of boxes of a class that overlap, the surest stands."""
        found = np.full((len(answers), _MOST_BOXES, 5), -1.0, dtype=np.float32)
        for answer, boxes, own in zip(answers[:, :-_SIDES], boxes_of(answers), found, strict=True):
            kept = _surest(answer, boxes)
            own[: len(kept)] = kept
        return found


def score_of(task: Task) -> Score:
    """The score that judges a task's answers."""
    return SCORES[task.kind](len(task.class_names))


SCORES: dict[str, Callable[[int], Score]] = {  # by kind of task, made for a number of classes
    "classification": Accuracy,
    "segmentation": MeanIoU,
    "detection": BoxesFound,
}


def interpolated(answer: Array, size: tuple[int, ...]) -> Array:
    """[channels, rows, columns] at another size: bilinear, pixels as areas (torch's ``align_corners=False``)."""
    for axis, extent in zip((1, 2), size, strict=True):
        own = answer.shape[axis]
        if own == extent:
            continue
        place = np.clip((np.arange(extent) + 0.5) * own / extent - 0.5, 0, own - 1)
        low = place.astype(np.int64)
        high = np.minimum(low + 1, own - 1)
        weight = (place - low).astype(np.float32).reshape((-1, 1) if axis == 1 else (-1,))
        answer = answer.take(low, axis) * (1 - weight) + answer.take(high, axis) * weight
    return answer


def boxes_of(answers: Array) -> Array:
    """The box of each cell, left, top, right and bottom in shares of the image: [count, 4, rows, columns]."""
    rows, columns = answers.shape[2:]
    y = ((np.arange(rows, dtype=np.float32) + 0.5) / rows)[:, None]
    x = ((np.arange(columns, dtype=np.float32) + 0.5) / columns)[None, :]
    left, top, right, bottom = np.exp(answers[:, -_SIDES:]).swapaxes(0, 1)
    return np.stack([x - left, y - top, x + right, y + bottom], axis=1)


def overlap(one: Array, other: Array) -> Array:
    """Intersection over union of boxes [..., 4], pair by pair."""
    low, high = np.maximum(one[..., :2], other[..., :2]), np.minimum(one[..., 2:], other[..., 2:])
    shared = np.maximum(high - low, 0).prod(axis=-1)
    areas = (np.maximum(box[..., 2:] - box[..., :2], 0).prod(axis=-1) for box in (one, other))
    union = sum(areas) - shared
    return np.asarray(shared / np.maximum(union, 1e-9), dtype=np.float32)


def _surest(logits: Array, boxes: Array) -> Array:
    """At most ``_MOST_BOXES`` boxes [found, 5] of one answer, without those that overlap a surer one of their class."""
    classes, sure = logits.argmax(axis=0).ravel(), logits.max(axis=0).ravel()
    order = np.argsort(-sure, kind="stable")
    order = order[sure[order] > 0]
    left = np.concatenate([classes[None, order], boxes.reshape(_SIDES, -1)[:, order]]).T.astype(np.float32)
    kept: list[Array] = []
    while len(left) and len(kept) < _MOST_BOXES:
        first, left = left[0], left[1:]
        kept.append(first)
        left = left[(left[:, 0] != first[0]) | (overlap(left[:, 1:], first[1:]) < _OVERLAP)]
    return np.stack(kept) if kept else np.zeros((0, 5), dtype=np.float32)


def _integers(targets: object, shape: tuple[int | None, ...], what: str) -> Targets:
    array = np.asarray(targets)
    fits = array.ndim == len(shape) and all(
        wanted in (None, extent) for wanted, extent in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in "iu":
        raise InputError(f"{what}, got {array.dtype} {array.shape}")
    return array.astype(np.int64)
