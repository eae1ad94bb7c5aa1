"""A vector for each sample, by which samples are compared."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

from packager.tasks.port import OfWholeSamples


class Embedding(OfWholeSamples):
    """Answers and targets: vectors [batch, values]; their length does not count. The data has no classes."""

    kind: Literal["embedding"] = "embedding"

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """See the port."""
        if len(output) == 1 and not class_names:
            return None
        if class_names:
            return f"an embedding has no classes, the data has {len(class_names)}"
        return f"the model answers with {'×'.join(map(str, output))}, not with one vector"

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """1 less the mean cosine similarity."""
        return 1 - functional.cosine_similarity(answers, targets.to(answers.dtype), dim=1).mean()

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The same against the teacher's vectors; no temperature."""
        return self.target_loss(answers, teacher)

    def distance(self, answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """1 less the score against ``others``."""
        return 1 - self.score(answers, others)

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The cosine similarity of each sample; opposite vectors count as 0."""
        return functional.cosine_similarity(answers, targets.to(answers.dtype), dim=1).clamp(0, 1)
