"""Object detection: one box per cell of a grid over the image (FCOS, Tian et al. 2019, on one level)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch.nn import functional

from device_sdk.supernet.blocks import MAP_AXES
from packager.tasks.port import apart, at_size

_SIDES = 4  # logits for classes come first, then the distances from the cell's centre to the sides of its box
_CENTRE = 0.25  # cells within this distance from a box's centre are assigned to it, relative to the box's size
_FOCUS, _BALANCE = 2.0, 0.25  # of the focal loss (Lin et al. 2017)
_BOX_WEIGHT = 1.0
_OVERLAP = 0.5  # intersection over union of a correct box


@dataclass(frozen=True)
class Detection:
    """Answers: [batch, classes + 4, rows, columns]: class logits, then the logarithms of the distances to the left,
    top, right and bottom side of the box, relative to the image; targets: boxes [batch, most, 5] float32.

    A box: its class, then left, top, right and bottom relative to the image, 0 to 1; rows of class −1 are padding.
    """

    kind: Literal["detection"] = "detection"

    def with_classes(self, class_names: tuple[str, ...]) -> Self:
        """See the port: the same, whatever the classes are called."""
        return self

    def class_count(self, output: tuple[int, ...]) -> int:
        """See the port."""
        return output[0] - _SIDES if len(output) == MAP_AXES else 0

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """See the port."""
        if self.class_count(output) == len(class_names):
            return None
        return f"the model answers with {'×'.join(map(str, output))}, not {len(class_names) + _SIDES} × rows × columns"

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Focal loss of the classes and overlap of the boxes."""
        wanted = assigned(targets, classes=answers.shape[1] - _SIDES, rows=answers.shape[2], columns=answers.shape[3])
        return _against(answers, wanted.classes, wanted.distances, wanted.classes.amax(1))

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The same against the teacher's classes and boxes, weighted by its confidence; no temperature."""
        sure = teacher[:, :-_SIDES].sigmoid()
        return _against(answers, sure, teacher[:, -_SIDES:].exp(), sure.amax(1))

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The share of boxes whose centre cell has their class and a box with an overlap of at least a half."""
        found = torch.zeros(len(targets), targets.shape[1], device=answers.device)
        rows, columns = answers.shape[2:]
        boxes = boxes_of(answers)
        y = ((targets[:, :, 2] + targets[:, :, 4]) / 2 * rows).long().clamp(0, rows - 1)
        x = ((targets[:, :, 1] + targets[:, :, 3]) / 2 * columns).long().clamp(0, columns - 1)
        numbers = torch.arange(len(targets), device=answers.device)[:, None]
        named = answers[:, :-_SIDES].argmax(1)[numbers, y, x] == targets[:, :, 0]
        certain = answers[:, :-_SIDES].amax(1)[numbers, y, x] > 0
        overlapping = overlap(boxes[numbers, :, y, x], targets[:, :, 1:]) >= _OVERLAP
        there = targets[:, :, 0] >= 0
        found[named & certain & overlapping & there] = 1.0
        return found.sum(1) / there.sum(1).clamp_min(1)

    def distance(self, answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """The distance of the cells' class probabilities, at the resolution of ``others``; boxes do not count."""
        found = at_size(answers[:, :-_SIDES], others.shape[2:])
        return apart(found.sigmoid(), others[:, :-_SIDES].sigmoid())

    def shifted(
        self, targets: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, *, size: tuple[int, int]
    ) -> torch.Tensor:
        """Moved with the image and clipped to it; boxes that lose more than half of their area are dropped."""
        classes, *sides = targets.unbind(2)
        up, left = rows[:, None] / size[0], columns[:, None] / size[1]
        moved = torch.stack([side - by for side, by in zip(sides, (left, up, left, up), strict=True)], dim=2)
        kept = moved.clamp(0, 1)
        whole = area(moved) <= area(kept) * 2
        return torch.cat([torch.where(whole, classes, -torch.ones_like(classes))[:, :, None], kept], dim=2)

    def mirrored(self, targets: torch.Tensor) -> torch.Tensor:
        """Left and right sides are swapped."""
        classes, left, top, right, bottom = targets.unbind(2)
        return torch.stack([classes, 1 - right, top, 1 - left, bottom], dim=2)


@dataclass(frozen=True)
class Assigned:
    """Targets of each cell: ``classes`` 0 or 1 [batch, classes, rows, columns] and, for cells assigned to a box,
    ``distances`` to its sides relative to the image [batch, 4, rows, columns].
    """

    classes: torch.Tensor
    distances: torch.Tensor


def assigned(targets: torch.Tensor, *, classes: int, rows: int, columns: int) -> Assigned:
    """Assign cells near the centre of a box, its centre cell at least, to the box; to the smallest of several."""
    x, y = _centres(rows, columns, targets.device)  # [rows, columns] each
    kinds, left, top, right, bottom = (column[:, :, None, None] for column in targets.unbind(2))
    width, height = right - left, bottom - top
    off_x, off_y = (x - (left + right) / 2).abs(), (y - (top + bottom) / 2).abs()
    near = (off_x <= torch.clamp_min(_CENTRE * width, 0.5 / columns)) & (
        off_y <= torch.clamp_min(_CENTRE * height, 0.5 / rows)
    )
    sizes = torch.where(near & (kinds >= 0), width * height, torch.inf)  # [batch, most, rows, columns]
    least, owner = sizes.min(1)
    owned = least < torch.inf
    own = torch.gather(targets, 1, owner.flatten(1)[:, :, None].expand(-1, -1, targets.shape[2]))
    own = own.transpose(1, 2).unflatten(2, (rows, columns))  # [batch, 5, rows, columns]
    kind = own[:, 0].long().clamp_min(0)
    hot = functional.one_hot(kind, classes).permute(0, 3, 1, 2) * owned[:, None]
    distances = torch.stack([x - own[:, 1], y - own[:, 2], own[:, 3] - x, own[:, 4] - y], dim=1)
    return Assigned(hot.float(), distances.clamp_min(1e-3))


def boxes_of(answers: torch.Tensor) -> torch.Tensor:
    """The box of each cell, left, top, right and bottom relative to the image: [batch, 4, rows, columns]."""
    return _around(answers[:, -_SIDES:].exp())


def area(boxes: torch.Tensor) -> torch.Tensor:
    """Area of boxes [..., 4]."""
    return (boxes[..., 2] - boxes[..., 0]).clamp_min(0) * (boxes[..., 3] - boxes[..., 1]).clamp_min(0)


def overlap(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Intersection over union of boxes [..., 4], pair by pair."""
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    shared = (high - low).clamp_min(0).prod(-1)
    return shared / (area(one) + area(other) - shared).clamp_min(1e-9)


def _against(
    answers: torch.Tensor, classes: torch.Tensor, distances: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Focal loss against ``classes`` (0 to 1) and 1 − overlap with the boxes of ``distances``, by ``weight`` [b, r, c].

    Both are normalised by the sum of the weights.
    """
    logits, count = answers[:, :-_SIDES], weight.sum().clamp_min(1.0)
    entropy = functional.binary_cross_entropy_with_logits(logits, classes, reduction="none")
    focus = (classes - logits.sigmoid()).abs() ** _FOCUS
    balance = _BALANCE * classes + (1 - _BALANCE) * (1 - classes)
    found, wanted = (_around(sides).permute(0, 2, 3, 1) for sides in (answers[:, -_SIDES:].exp(), distances))
    missed = (1 - overlap(found, wanted)) * weight
    return ((balance * focus * entropy).sum() + _BOX_WEIGHT * missed.sum()) / count


def _around(distances: torch.Tensor) -> torch.Tensor:
    x, y = _centres(distances.shape[2], distances.shape[3], distances.device)
    left, top, right, bottom = distances.unbind(1)
    return torch.stack([x - left, y - top, x + right, y + bottom], dim=1)


def _centres(rows: int, columns: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    y = (torch.arange(rows, device=device) + 0.5) / rows
    x = (torch.arange(columns, device=device) + 0.5) / columns
    return x[None, :].expand(rows, columns), y[:, None].expand(rows, columns)
