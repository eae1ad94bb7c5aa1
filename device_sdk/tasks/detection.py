"""Boxes of objects, each with a class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.tasks.port import Prediction, Predictions, ScoredAlone, Scores, Targets, compared_places, logistic

_SIDES = 4  # channels of a detector's answer behind its classes
_OVERLAP = 0.5  # intersection over union of the same box
_MOST_BOXES = 100  # of one image that stand in
_SURE = 1 + _SIDES  # place of the logit in a row of what is found, behind class and sides


class BoxesFound(ScoredAlone):
    """The share of boxes whose centre cell has their class, and a box that overlaps them by a half.

    Implements the port. Answers [count, classes + 4, rows, columns] as the manifest's task says; targets [count, most,
    5]: class, left, top, right and bottom in shares of the image; rows of class −1 are padding. A sample's own score
    also counts what was found where nothing is: the harmonic mean of precision and recall, 1 where nothing is and
    nothing was found.
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

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port: 2 · matched / (found + there), of boxes that match one to one, the surest first."""
        boxes, logits = boxes_of(answers), answers[:, :-_SIDES]
        found = (_surest(*one)[:, :_SURE] for one in zip(logits, boxes, strict=True))
        return np.array([_f1(one, own) for one, own in zip(found, targets, strict=True)], np.float32)

    def predictions(self, answers: Array, class_names: Sequence[str]) -> Predictions:
        """See the port: the boxes, the surest first; of those of a class that overlap, the surest."""
        return [
            tuple(
                Prediction(class_names[int(row[0])], float(logistic(row[_SURE])), box=_box(row))
                for row in _surest(answer, boxes)
            )
            for answer, boxes in zip(answers[:, :-_SIDES], boxes_of(answers), strict=True)
        ]

    def compared(self, answers: Array) -> Array:
        """See the port."""
        return compared_places(answers)

    def stand_in(self, answers: Array) -> Targets:
        """See the port. Of boxes of a class that overlap, the surest stands."""
        found = np.full((len(answers), _MOST_BOXES, 5), -1.0, dtype=np.float32)
        for answer, boxes, own in zip(answers[:, :-_SIDES], boxes_of(answers), found, strict=True):
            kept = _surest(answer, boxes)[:, :_SURE]
            own[: len(kept)] = kept
        return found


def _box(row: Array) -> tuple[float, float, float, float]:
    left, top, right, bottom = row[1:_SURE].tolist()
    return left, top, right, bottom


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


def _f1(found: Array, targets: Targets) -> float:
    """Of boxes ``found`` [n, 5], the surest first, against targets [most, 5]."""
    there = targets[targets[:, 0] >= 0]
    if not len(there) and not len(found):
        return 1.0
    near = overlap(found[:, None, 1:], there[None, :, 1:]) * (found[:, None, 0] == there[None, :, 0])
    matched, free = 0, np.ones(len(there), dtype=bool)
    for row in near:
        overlaps = np.where(free, row, 0.0)
        if len(there) and overlaps.max() >= _OVERLAP:
            free[int(overlaps.argmax())] = False
            matched += 1
    return 2 * matched / (len(found) + len(there))


def _surest(logits: Array, boxes: Array) -> Array:
    """At most ``_MOST_BOXES`` boxes of one answer, without those that overlap a surer one of their class.

    [found, 6]: class, sides, logit; the surest first.
    """
    classes, sure = logits.argmax(axis=0).ravel(), logits.max(axis=0).ravel()
    order = np.argsort(-sure, kind="stable")
    order = order[sure[order] > 0]
    rows = [classes[None, order], boxes.reshape(_SIDES, -1)[:, order], sure[None, order]]
    left = np.concatenate(rows).T.astype(np.float32)
    kept: list[Array] = []
    while len(left) and len(kept) < _MOST_BOXES:
        first, left = left[0], left[1:]
        kept.append(first)
        left = left[(left[:, 0] != first[0]) | (overlap(left[:, 1:_SURE], first[1:_SURE]) < _OVERLAP)]
    return np.stack(kept) if kept else np.zeros((0, _SURE + 1), dtype=np.float32)
