"""The port of tasks, what tuning makes of their losses, and the imitation of logits that most of them share."""

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

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How far the answers are from the targets: a scalar to learn from."""

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """How far the answers are from the teacher's, at a temperature where the task has one."""

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How good each answer is, 0 to 1: [batch]."""

    def shifted(
        self, targets: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, *, size: tuple[int, int]
    ) -> torch.Tensor:
        """The targets of images of ``size`` that were moved up by ``rows`` and left by ``columns`` pixels [batch]."""

    def mirrored(self, targets: torch.Tensor) -> torch.Tensor:
        """The targets of images that were mirrored, left for right."""


def mixed_loss(
    task: LearningTask,
    answers: torch.Tensor,
    targets: torch.Tensor,
    teacher: torch.Tensor,
    *,
    temperature: float,
    label_weight: float,
) -> torch.Tensor:
    """What tuning minimises: the targets' loss by ``label_weight``, the imitation of the teacher by the rest."""
    imitated = task.imitation_loss(answers, teacher, temperature)
    return label_weight * task.target_loss(answers, targets) + (1 - label_weight) * imitated


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
