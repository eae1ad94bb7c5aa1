"""The port of tasks, the mixed loss of tuning, and the imitation of logits that most tasks share."""

from __future__ import annotations

from typing import Protocol, Self

import torch
from torch.nn import functional

from device_sdk.bundles.manifest import TaskKind


class LearningTask(Protocol):
    """Losses and scores of answers [batch, *output] against targets [batch, …]."""

    @property
    def kind(self) -> TaskKind:
        """The task's name in the manifest."""

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """Why a model with the output shape ``output`` per sample does not fit this task; None if it does."""

    def with_classes(self, class_names: tuple[str, ...]) -> LearningTask:
        """The task of a model with these classes."""

    def class_count(self, output: tuple[int, ...]) -> int:
        """The classes that a model with the output shape ``output`` per sample answers for; 0 if of another task."""

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The scalar loss against the targets."""

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The scalar loss against the teacher's answers, at a temperature where the task has one."""

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The score of each answer, 0 to 1: [batch]."""

    def distance(self, answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """The distance of two answers to each sample, 0 to 1: [batch]. Maps may have different resolutions."""

    def shifted(
        self, targets: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, *, size: tuple[int, int]
    ) -> torch.Tensor:
        """The targets of images of ``size`` after a shift up by ``rows`` and left by ``columns`` pixels [batch]."""

    def mirrored(self, targets: torch.Tensor) -> torch.Tensor:
        """The targets of horizontally flipped images."""


class OfWholeSamples:
    """Common to tasks whose targets are of whole samples: they do not depend on positions in an image."""

    def with_classes(self, class_names: tuple[str, ...]) -> Self:
        """See the port: the same, whatever the classes are called."""
        return self

    def class_count(self, output: tuple[int, ...]) -> int:
        """See the port: one for each value of a vector."""
        return output[0] if len(output) == 1 else 0

    def shifted(
        self, targets: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, *, size: tuple[int, int]
    ) -> torch.Tensor:
        """Unchanged."""
        return targets

    def mirrored(self, targets: torch.Tensor) -> torch.Tensor:
        """Unchanged."""
        return targets


def mixed_loss(
    task: LearningTask,
    answers: torch.Tensor,
    targets: torch.Tensor,
    teacher: torch.Tensor,
    *,
    temperature: float,
    label_weight: float,
) -> torch.Tensor:
    """The loss of tuning: ``label_weight`` · target loss + (1 − ``label_weight``) · imitation loss."""
    imitated = task.imitation_loss(answers, teacher, temperature)
    return label_weight * task.target_loss(answers, targets) + (1 - label_weight) * imitated


def total_variation(answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """The total variation distance of class probabilities of logits [batch, classes, …]: [batch], mean of places."""
    distances = (answers.softmax(1) - others.softmax(1)).abs().sum(1) / 2
    return distances.flatten(1).mean(1) if distances.dim() > 1 else distances


def apart(found: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """1 − Σ min / Σ max (Ruzicka's distance) of values [batch, …] of at least 0; [batch], 0 where all are 0."""
    found, others = found.flatten(1), others.flatten(1)
    largest = torch.maximum(found, others).sum(1)
    return torch.where(largest > 0, 1 - torch.minimum(found, others).sum(1) / largest.clamp_min(1e-12), 0.0)


def at_size(answers: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Maps [batch, channels, rows, columns] at the resolution ``size``, bilinear."""
    if answers.shape[2:] == size:
        return answers
    return functional.interpolate(answers, size=size, mode="bilinear", align_corners=False)


def imitation(answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Kullback-Leibler divergence from the teacher's class probabilities, times the square of the temperature.

    Both arguments are logits [batch, classes, …]; averaged over the batch and all positions.
    """
    divergence = functional.kl_div(
        functional.log_softmax(answers / temperature, dim=1),
        functional.log_softmax(teacher / temperature, dim=1),
        log_target=True,
        reduction="none",
    )
    return temperature**2 * divergence.sum(1).mean()
