"""The port of tasks, and the imitation of a teacher's logits that most of them share."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from device_sdk.bundles.manifest import TaskKind


class LearningTask(Protocol):
    """Answers [batch, *output], and targets [batch, …] that they are compared with."""

    @property
    def kind(self) -> TaskKind:
        """As the manifest calls it."""

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """Why a model that answers with ``output`` for one sample cannot be one for this task; None if it can."""

    def loss(
        self,
        answers: torch.Tensor,
        targets: torch.Tensor,
        teacher: torch.Tensor,
        *,
        temperature: float,
        label_weight: float,
    ) -> torch.Tensor:
        """What tuning minimises: distances from the targets and from the teacher's answers, by ``label_weight``."""

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How good each answer is, 0 to 1: [batch]."""

    def shifted(
        self, targets: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, *, size: tuple[int, int]
    ) -> torch.Tensor:
        """The targets of images of ``size`` that were moved up by ``rows`` and left by ``columns`` pixels [batch]."""

    def mirrored(self, targets: torch.Tensor) -> torch.Tensor:
        """The targets of images that were mirrored, left for right."""


def imitation(answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Kullback-Leibler divergence from the teacher's classes at a temperature, times its square.

    Both: logits [batch, classes, …]; the mean over the batch and all positions.
    """
    divergence = functional.kl_div(
        functional.log_softmax(answers / temperature, dim=1),
        functional.log_softmax(teacher / temperature, dim=1),
        log_target=True,
        reduction="none",
    )
    return temperature**2 * divergence.sum(1).mean()
