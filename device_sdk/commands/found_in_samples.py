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
_SIDES = ("left", "top", "right", "bottom")


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
    return [
        {"label": task.class_names[int(box[0])], **dict(zip(_SIDES, map(float, box[1:]), strict=True))}
        for box in boxes
        if box[0] >= 0
    ]


def _names(output: Array, task: Task, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    """Spans of a text with their first character and the one behind them; words of class O are left out."""
    from device_sdk.data.kinds.texts import TextPreparer
    from device_sdk.tasks import answer_task
    from device_sdk.tasks.tokens import OUTSIDE, begins_span, tag_parts

    assert isinstance(sample, str)
    assert isinstance(preparer, TextPreparer)
    [places], [classes] = preparer.tokenizer.places([sample]), answer_task(task).stand_in(output)
    found: list[dict[str, Any]] = []
    for (start, end), number in zip(places.tolist(), classes.tolist(), strict=False):
        if end <= start or number < 0:  # a mark
            continue
        name = task.class_names[number]
        in_word = bool(found) and found[-1]["end"] == start and sample[start - 1 : start + 1].isalnum()
        if in_word or not begins_span(name, found[-1]["label"] if found else None):
            found[-1]["end"] = end
        else:
            found.append({"label": tag_parts(name)[1], "start": start, "end": end})
    return [one | {"text": sample[one["start"] : one["end"]]} for one in found if one["label"] != OUTSIDE]


def _labels(output: Array, task: Task, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    """The labels that are there, the surest first."""
    order = [at for at in np.argsort(-output[0], kind="stable") if output[0][at] > 0]
    return [{"label": task.class_names[at], "confidence": float(1 / (1 + np.exp(-output[0][at])))} for at in order]


def _numbers(output: Array, task: Task, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    return [{"label": name, "value": float(one)} for name, one in zip(task.class_names, output[0], strict=True)]


def _vector(output: Array, task: Task, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    return [{"vector": output[0].tolist()}]


FOUND: Mapping[str, Callable[[Array, Task, object, Preparer], list[dict[str, Any]]]] = {
    "segmentation": _classes,
    "detection": _boxes,
    "token_classification": _names,
    "multilabel": _labels,
    "regression": _numbers,
    "embedding": _vector,
}
"""By kind of task, of an output [1, ...] for a sample that the preparer reads."""


_SAID: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "text": lambda one: f"{one['label']} {one['text']}",
    "share": lambda one: f"{one['label']} {one['share']:.1%}",
    "confidence": lambda one: f"{one['label']} {one['confidence']:.1%}",
    "value": lambda one: f"{one['label']} {one['value']:.6g}",
    "vector": lambda one: f"a vector of {len(one['vector'])} numbers (--json shows them)",
    "left": lambda one: f"{one['label']} at " + " ".join(f"{one[side]:.2f}" for side in _SIDES),
}
"""By a field of what is found."""


def found_text(found: list[dict[str, Any]]) -> str:
    """One line."""
    if not found:
        return "nothing found"
    say = next(say for field, say in _SAID.items() if field in found[0])
    named = [say(one) for one in found[:_NAMED]]
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(named) + more
