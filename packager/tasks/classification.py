"""One class for each sample."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

from packager.tasks.port import OfWholeSamples, imitation, total_variation


class Classification(OfWholeSamples):
    """Answers: logits [batch, classes]; targets: positions of classes [batch] int64."""

    kind: Literal["classification"] = "classification"

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """See the port."""
        if output == (len(class_names),):
            return None
        return f"the model has {'×'.join(map(str, output))} outputs, the data has {len(class_names)} classes"

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy."""
        return functional.cross_entropy(answers, targets)

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """Kullback-Leibler divergence from the teacher's class probabilities."""
        return imitation(answers, teacher, temperature)

    def distance(self, answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """The total variation distance of the class probabilities."""
        return total_variation(answers, others)

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """1 for a correct class, else 0."""
        return (answers.argmax(1) == targets).float()
