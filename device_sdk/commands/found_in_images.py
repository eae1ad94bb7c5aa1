"""Answers of models of maps and boxes for one image, in words and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from device_sdk.bundles.manifest import Task
    from device_sdk.runtimes.port import Array

_NAMED = 6  # classes or boxes in one line
_LEAST_SHARE = 0.005  # of the pixels of a class that is named


def _classes(output: Array, task: Task) -> list[dict[str, Any]]:
    """The classes of the pixels with their shares, the largest first."""
    counts = np.bincount(output[0].argmax(axis=0).ravel(), minlength=len(task.class_names))
    shares = counts / counts.sum()
    order = np.argsort(-shares, kind="stable")
    return [{"label": task.class_names[at], "share": float(shares[at])} for at in order if shares[at] >= _LEAST_SHARE]


def _boxes(output: Array, task: Task) -> list[dict[str, Any]]:
    """The boxes, the surest first, their sides in shares of the image."""
    from device_sdk.tasks import answer_task

    boxes = answer_task(task).stand_in(output)[0]
    sides = ("left", "top", "right", "bottom")
    return [
        {"label": task.class_names[int(box[0])], **dict(zip(sides, map(float, box[1:]), strict=True))}
        for box in boxes
        if box[0] >= 0
    ]


FOUND: Mapping[str, Callable[[Array, Task], list[dict[str, Any]]]] = {"segmentation": _classes, "detection": _boxes}
"""By kind of task, of an output [1, ...]."""


def found_text(found: list[dict[str, Any]]) -> str:
    """One line."""
    if not found:
        return "nothing found"
    if "share" in found[0]:
        named = [f"{one['label']} {one['share']:.1%}" for one in found[:_NAMED]]
    else:
        named = [
            f"{one['label']} at {one['left']:.2f} {one['top']:.2f} {one['right']:.2f} {one['bottom']:.2f}"
            for one in found[:_NAMED]
        ]
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(named) + more
