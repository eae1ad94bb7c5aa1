"""Finds of models of maps, boxes and words in one sample, in words and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from device_sdk.bundles.manifest import Task
    from device_sdk.data.kinds.port import Preparer
    from device_sdk.runtimes.port import Array

_NAMED = 6  # classes or boxes in one line
_LEAST_SHARE = 0.005  # of the pixels of a class that is named
_OUTSIDE = "O"  # the class of words that belong to no stretch


def _classes(output: Array, task: Task, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    """The classes of the pixels with their shares, the largest first."""
    counts = np.bincount(output[0].argmax(axis=0).ravel(), minlength=len(task.class_names))
    shares = counts / counts.sum()
    order = np.argsort(-shares, kind="stable")
    return [{"label": task.class_names[at], "share": float(shares[at])} for at in order if shares[at] >= _LEAST_SHARE]


def _boxes(output: Array, task: Task, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    """The boxes, the surest first, their sides in shares of the image."""
    from device_sdk.tasks import answer_task

    boxes = answer_task(task).stand_in(output)[0]
    sides = ("left", "top", "right", "bottom")
    return [
        {"label": task.class_names[int(box[0])], **dict(zip(sides, map(float, box[1:]), strict=True))}
        for box in boxes
        if box[0] >= 0
    ]


def _names(output: Array, task: Task, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    """Stretches of a text with a class, their first character and the one behind them; words of class O are left out.

    Classes B-NAME and I-NAME begin and continue a stretch of NAME (IOB2); other classes name one word each.
    """
    from device_sdk.data.kinds.texts import TextPreparer
    from device_sdk.tasks import answer_task

    assert isinstance(sample, str)
    assert isinstance(preparer, TextPreparer)
    [places], [classes] = preparer.tokenizer.places([sample]), answer_task(task).stand_in(output)
    found: list[dict[str, Any]] = []
    for (start, end), number in zip(places.tolist(), classes.tolist(), strict=False):
        if end <= start or number < 0:  # a mark
            continue
        mark, _, name = task.class_names[number].rpartition("-")
        in_word = bool(found) and found[-1]["end"] == start and sample[start - 1 : start + 1].isalnum()
        if in_word or (mark == "I" and found and found[-1]["label"] == name):
            found[-1]["end"] = end
        else:
            found.append({"label": name, "start": start, "end": end})
    return [one | {"text": sample[one["start"] : one["end"]]} for one in found if one["label"] != _OUTSIDE]


FOUND: Mapping[str, Callable[[Array, Task, object, Preparer], list[dict[str, Any]]]] = {
    "segmentation": _classes,
    "detection": _boxes,
    "token_classification": _names,
}
"""By kind of task, of an output [1, ...] for a sample that the preparer reads."""


def found_text(found: list[dict[str, Any]]) -> str:
    """One line."""
    if not found:
        return "nothing found"
    if "text" in found[0]:
        named = [f"{one['label']} {one['text']}" for one in found[:_NAMED]]
    elif "share" in found[0]:
        named = [f"{one['label']} {one['share']:.1%}" for one in found[:_NAMED]]
    else:
        named = [
            f"{one['label']} at {one['left']:.2f} {one['top']:.2f} {one['right']:.2f} {one['bottom']:.2f}"
            for one in found[:_NAMED]
        ]
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(named) + more
