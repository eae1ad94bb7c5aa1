"""Semantic segmentation: one class per pixel."""

from __future__ import annotations

from typing import Literal, Self

import torch
from torch.nn import functional

from device_sdk.data.unlabelled import IGNORED
from device_sdk.supernet.blocks import MAP_AXES
from packager.tasks.port import at_size, imitation, total_variation


class Segmentation:
    """Answers: logits [batch, classes, height, width]; targets: classes [batch, height, width] uint8, or IGNORED.

    Answers of a lower resolution are interpolated.
    """

    kind: Literal["segmentation"] = "segmentation"

    def with_classes(self, class_names: tuple[str, ...]) -> Self:
        """See the port: the same, whatever the classes are called."""
        return self

    def class_count(self, output: tuple[int, ...]) -> int:
        """See the port."""
        return output[0] if len(output) == MAP_AXES else 0

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """See the port."""
        if self.class_count(output) == len(class_names):
            return None
        return f"the model answers with {'×'.join(map(str, output))}, not {len(class_names)} classes × height × width"

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the pixels that are not ignored."""
        return functional.cross_entropy(at_size(answers, targets.shape[1:]), targets.long(), ignore_index=IGNORED)

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """Kullback-Leibler divergence from the teacher's class probabilities, at all positions of the answers."""
        return imitation(answers, teacher, temperature)

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The share of labelled pixels with the correct class."""
        right = at_size(answers, targets.shape[1:]).argmax(1) == targets
        counted = targets != IGNORED
        return (right & counted).flatten(1).sum(1) / counted.flatten(1).sum(1).clamp_min(1)

    def distance(self, answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """The total variation distance of the pixels' class probabilities, at the resolution of ``others``."""
        return total_variation(at_size(answers, others.shape[2:]), others)

    def shifted(
        self, targets: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, *, size: tuple[int, int]
    ) -> torch.Tensor:
        """Moved with the image; new pixels are IGNORED."""
        _, height, width = targets.shape
        sources_y = (torch.arange(height) + rows[:, None])[:, :, None]
        sources_x = (torch.arange(width) + columns[:, None])[:, None, :]
        inside = (sources_y >= 0) & (sources_y < height) & (sources_x >= 0) & (sources_x < width)
        numbers = torch.arange(len(targets))[:, None, None]
        moved = targets[numbers, sources_y.clamp(0, height - 1), sources_x.clamp(0, width - 1)]
        return torch.where(inside, moved, torch.full_like(moved, IGNORED))

    def mirrored(self, targets: torch.Tensor) -> torch.Tensor:
        """Mirrored with the image."""
        return targets.flip(2)
