"""Numbers for each sample."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

from packager.tasks.port import OfWholeSamples

_TINY = 1e-12  # of two values that are 0 alike


class Regression(OfWholeSamples):
    """Answers and targets: [batch, values], which the data's class names name."""

    kind: Literal["regression"] = "regression"

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """See the port."""
        if output == (len(class_names),):
            return None
        return f"the model has {'×'.join(map(str, output))} outputs, the data has {len(class_names)} values"

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Huber's loss: squares near 0, absolute values far from it."""
        return functional.smooth_l1_loss(answers, targets.to(answers.dtype))

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The same against the teacher's values; no temperature."""
        return self.target_loss(answers, teacher)

    def distance(self, answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """1 less the score against ``others``."""
        return 1 - self.score(answers, others)

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """1 less |answer − target| / (|answer| + |target|), the mean of each sample's values (sMAPE)."""
        apart = (answers - targets).abs() / (answers.abs() + targets.abs()).clamp_min(_TINY)
        return 1 - apart.mean(1)
