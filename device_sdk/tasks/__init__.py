"""Tasks on a device: scores, margins and distances of answers. A new task is a file here and a line in ``TASKS``."""

from __future__ import annotations

from collections.abc import Callable

from device_sdk.bundles.manifest import Task
from device_sdk.tasks.classification import Accuracy
from device_sdk.tasks.detection import BoxesFound
from device_sdk.tasks.embedding import Similarity
from device_sdk.tasks.multilabel import LabelsFound
from device_sdk.tasks.port import AnswerTask
from device_sdk.tasks.regression import RelativeAgreement
from device_sdk.tasks.segmentation import MeanIoU
from device_sdk.tasks.tokens import TokensRight

TASKS: dict[str, Callable[[int], AnswerTask]] = {
    "classification": Accuracy,
    "segmentation": MeanIoU,
    "detection": BoxesFound,
    "multilabel": LabelsFound,
    "regression": RelativeAgreement,
    "embedding": Similarity,
    "token_classification": TokensRight,
}
"""By kind in the manifest, made for a number of classes."""


def answer_task(task: Task) -> AnswerTask:
    """The task that judges the answers of a bundle's model."""
    return TASKS[task.kind](len(task.class_names))


__all__ = ["TASKS", "AnswerTask", "answer_task"]
