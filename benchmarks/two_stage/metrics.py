"""Metrics of segmentation and detection: mIoU and mAP at an overlap of one half, both from torchmetrics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from device_sdk.data.unlabelled import IGNORED
from packager.tasks.detection import boxes_of

Run = Callable[[np.ndarray], np.ndarray]

BATCH = 8
LEAST_SURE = 0.05  # probability of a box that is kept
MOST_BOXES = 100
SAME = 0.5  # of two boxes of a class that overlap by more, the surer one is kept


def miou_percent(run: Run, inputs: np.ndarray, targets: np.ndarray, *, classes: int) -> float:
    """Mean intersection over union of the classes, over all pixels; answers are brought to the targets' resolution."""
    from torchmetrics.classification import MulticlassJaccardIndex

    metric = MulticlassJaccardIndex(num_classes=classes, ignore_index=IGNORED)
    for first in range(0, len(inputs), BATCH):
        wanted = torch.from_numpy(targets[first : first + BATCH]).long()
        answers = torch.from_numpy(run(inputs[first : first + BATCH]))
        answers = functional.interpolate(answers, size=wanted.shape[1:], mode="bilinear", align_corners=False)
        metric.update(answers.argmax(1), wanted)
    return 100 * float(metric.compute())


def map50_percent(run: Run, inputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean average precision of the classes, a box being found if one of its class overlaps it by half."""
    from torchmetrics.detection import MeanAveragePrecision

    metric = MeanAveragePrecision(iou_thresholds=[0.5])
    for first in range(0, len(inputs), BATCH):
        answers = torch.from_numpy(run(inputs[first : first + BATCH]))
        found = [_boxes(one) for one in answers]
        wanted = []
        for boxes in torch.from_numpy(targets[first : first + BATCH]):
            there = boxes[boxes[:, 0] >= 0]
            wanted.append({"boxes": there[:, 1:], "labels": there[:, 0].long()})
        metric.update(found, wanted)
    return 100 * float(metric.compute()["map_50"])


def _boxes(answer: torch.Tensor) -> dict[str, torch.Tensor]:
    """The boxes of one answer [classes + 4, rows, columns], those that overlap a surer one of their class left out."""
    from torchvision.ops import batched_nms

    sure, labels = answer[:-4].sigmoid().flatten(1).max(0)
    boxes = boxes_of(answer[None])[0].flatten(1).T.clamp(0, 1)
    order = sure.argsort(descending=True)[:1000]
    order = order[sure[order] >= LEAST_SURE]
    kept = order[batched_nms(boxes[order], sure[order], labels[order], SAME)][:MOST_BOXES]
    return {"boxes": boxes[kept], "scores": sure[kept], "labels": labels[kept]}
