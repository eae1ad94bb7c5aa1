"""Detectors that answer with a set of boxes, as DETR's do, as detectors of cells, which devices read.

Source: Carion et al., "End-to-End Object Detection with Transformers", 2020: boxes as centre, width and height in
shares of the image; softmax over the classes and no object. Deformable ones have a sigmoid for each class instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from packager.errors import ModelLoadError

GRID = 32  # cells along each side: of boxes with their centres in one cell, the surest is kept
_NOTHING = -10.0  # logit of each class in a cell without a box
_LEAST_SHARE = 1e-6
_LEAST_SIDE = 1e-3  # of the image, from a cell's centre to the side of its box


class CellsOfBoxes(nn.Module):
    """Images [batch, 3, height, width] → [batch, classes + 4, GRID, GRID].

    Logits of the classes, then logarithms of the distances to the left, top, right and bottom side of the box, in
    shares of the image. ``model``: of transformers; answers with ``logits`` [batch, boxes, classes or classes + 1] and
    ``pred_boxes``. A box lies in the cell of its centre; its sides are kept but where that centre is outside of it.
    """

    def __init__(self, model: nn.Module, *, classes: int, boxes: int, softmax: bool) -> None:
        super().__init__()
        self.model, self.classes, self.softmax = model, classes, softmax
        self.register_buffer("numbers", torch.arange(boxes), persistent=False)
        places = (torch.arange(GRID) + 0.5) / GRID
        self.register_buffer("cells", torch.arange(GRID * GRID)[:, None], persistent=False)
        self.register_buffer("across", places.repeat(GRID), persistent=False)
        self.register_buffer("down", places.repeat_interleave(GRID), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        answer = self.model(pixel_values=images)
        found, boxes = self._logits(answer.logits), answer.pred_boxes
        column, row = ((boxes[..., axis] * GRID).floor().clamp(0, GRID - 1) for axis in (0, 1))
        inside = (row * GRID + column)[:, None] == self.cells  # [batch, cells, boxes]
        sure = torch.where(inside, found.amax(-1)[:, None], -torch.inf)
        is_best = inside & (
            sure.argmax(-1, keepdim=True) == self.numbers
        )  # products, since sizes of copies are checked
        chosen = is_best.to(boxes.dtype)  # products with it, since nothing may be copied as often as it says
        logits = chosen @ found + (1 - chosen.sum(-1, keepdim=True)) * _NOTHING
        x, y, width, height = (chosen @ boxes).unbind(-1)
        left, right = self.across - (x - width / 2), x + width / 2 - self.across
        top, bottom = self.down - (y - height / 2), y + height / 2 - self.down
        sides = torch.stack([left, top, right, bottom], dim=-1).clamp(min=_LEAST_SIDE).log()
        return torch.cat([logits, sides], dim=-1).transpose(1, 2).unflatten(2, (GRID, GRID))

    def _logits(self, logits: Tensor) -> Tensor:
        """[batch, boxes, classes]: of each class against everything else."""
        if not self.softmax:
            return logits
        shares = logits.softmax(-1)[..., : self.classes].clamp(_LEAST_SHARE, 1 - _LEAST_SHARE)
        return shares.log() - (1 - shares).log()


def cells_of_boxes(model: Any, side: tuple[int, int]) -> CellsOfBoxes:
    """A detector of transformers, for images of ``side``.

    Raises:
        ModelLoadError: its answers are of another kind.
    """
    with torch.no_grad():
        answer = model(pixel_values=torch.zeros(1, 3, *side))
    logits, boxes = getattr(answer, "logits", None), getattr(answer, "pred_boxes", None)
    classes = int(model.config.num_labels)
    if logits is None or boxes is None or boxes.shape[-1] != 4 or logits.shape[-1] not in (classes, classes + 1):
        raise ModelLoadError(f"{type(model).__name__} answers with no set of boxes", hint="build it in a callable")
    softmax = logits.shape[-1] == classes + 1
    return CellsOfBoxes(model, classes=classes, boxes=boxes.shape[1], softmax=softmax)
