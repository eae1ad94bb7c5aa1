"""Finds of models of maps, boxes and words in one sample, in words and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from device_sdk.data.kinds.port import Preparer
    from device_sdk.session.answer import Answer
    from device_sdk.tasks.port import Prediction

_NAMED = 6  # classes or boxes in one line
_LEAST_SHARE = 0.005  # of the pixels of a class that is named
_SIDES = ("left", "top", "right", "bottom")


def found_in(answer: Answer, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    """Everything that an answer to ``sample`` alone says, ``preparer`` being of the model's samples."""
    kind = answer.task.kind
    if kind == "embedding":
        return [{"vector": answer.output[0].tolist()}]
    if kind == "token_classification":
        return _spans(answer, sample, preparer)
    return [
        {"label": one.label, **_of(one)}
        for one in answer.predictions[0]
        if one.share is None or one.share >= _LEAST_SHARE
    ]


def _of(one: Prediction) -> dict[str, Any]:
    if one.box is not None:
        return dict(zip(_SIDES, one.box, strict=True)) | {"confidence": one.confidence}
    return {name: value for name in ("share", "confidence", "value") if (value := getattr(one, name)) is not None}


def _spans(answer: Answer, sample: object, preparer: Preparer) -> list[dict[str, Any]]:
    """Spans of a text with their first character and the one behind them; words of class O are left out."""
    from device_sdk.data.kinds.texts import TextPreparer
    from device_sdk.tasks import answer_task
    from device_sdk.tasks.tokens import token_spans

    assert isinstance(sample, str)
    assert isinstance(preparer, TextPreparer)
    [places], [classes] = preparer.tokenizer.places([sample]), answer_task(answer.task).stand_in(answer.output)
    places = places[: len(classes)]
    classes = np.where(places[:, 1] > places[:, 0], classes[: len(places)], -1)  # marks
    joined = np.array([start > 0 and sample[start - 1 : start + 1].isalnum() for start, _ in places])
    joined[1:] &= places[1:, 0] == places[:-1, 1]
    found = []
    for first, end, kind in token_spans(answer.task.class_names, classes, joined):
        start, stop = int(places[first, 0]), int(places[end - 1, 1])
        found.append({"label": kind, "start": start, "end": stop, "text": sample[start:stop]})
    return found


_SAID: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "text": lambda one: f"{one['label']} {one['text']}",
    "left": lambda one: f"{one['label']} at " + " ".join(f"{one[side]:.2f}" for side in _SIDES),
    "share": lambda one: f"{one['label']} {one['share']:.1%}",
    "confidence": lambda one: f"{one['label']} {one['confidence']:.1%}",
    "value": lambda one: f"{one['label']} {one['value']:.6g}",
    "vector": lambda one: f"a vector of {len(one['vector'])} numbers (--json shows them)",
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
