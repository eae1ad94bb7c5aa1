"""Tasks on a device: scores, margins and distances of answers. A new task is a file here and a line in ``TASKS``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from device_sdk.bundles.manifest import Task
from device_sdk.tasks.classification import Accuracy
from device_sdk.tasks.detection import BoxesFound
from device_sdk.tasks.embedding import Similarity
from device_sdk.tasks.multilabel import LabelsFound
from device_sdk.tasks.port import AnswerTask
from device_sdk.tasks.regression import RelativeAgreement
from device_sdk.tasks.segmentation import MeanIoU
from device_sdk.tasks.tokens import tokens_task

Made = Callable[[Sequence[str]], AnswerTask]


def by_count(made: Callable[[int], AnswerTask]) -> Made:
    """A task that depends on the number of classes alone."""
    return lambda class_names: made(len(class_names))


TASKS: dict[str, Made] = {
    "classification": by_count(Accuracy),
    "segmentation": by_count(MeanIoU),
    "detection": by_count(BoxesFound),
    "multilabel": by_count(LabelsFound),
    "regression": by_count(RelativeAgreement),
    "embedding": by_count(Similarity),
    "token_classification": tokens_task,
}
"""By kind in the manifest, made for the names of classes."""


def answer_task(task: Task) -> AnswerTask:
    """The task that judges the answers of a bundle's model."""
    return TASKS[task.kind](task.class_names)


__all__ = ["TASKS", "AnswerTask", "answer_task", "by_count"]
