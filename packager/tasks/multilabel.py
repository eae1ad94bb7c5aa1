"""Any number of labels for each sample."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

from packager.tasks.port import OfWholeSamples, apart


class MultiLabel(OfWholeSamples):
    """Answers: a logit for each label [batch, labels]; targets: 1 where a label is there, else 0 [batch, labels]."""

    kind: Literal["multilabel"] = "multilabel"

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """See the port."""
        if output == (len(class_names),):
            return None
        return f"the model has {'×'.join(map(str, output))} outputs, the data has {len(class_names)} labels"

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy of each label."""
        return functional.binary_cross_entropy_with_logits(answers, targets.to(answers.dtype))

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The same against the teacher's probabilities at the temperature, times its square."""
        wanted = (teacher / temperature).sigmoid()
        return temperature**2 * functional.binary_cross_entropy_with_logits(answers / temperature, wanted)

    def distance(self, answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """The distance of the labels' probabilities."""
        return apart(answers.sigmoid(), others.sigmoid())

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """F1 of each sample's labels, 1 where none is there and none was found."""
        found, there = answers > 0, targets > 0
        both = found.sum(1) + there.sum(1)
        f1 = 2 * (found & there).sum(1) / both.clamp_min(1)
        return torch.where(both > 0, f1, torch.ones_like(f1))
