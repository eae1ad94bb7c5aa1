from __future__ import annotations

import numpy as np
import pytest

from device_sdk.bundles.manifest import Task
from device_sdk.session.answer import ABSTAINED, SUBNET, Answer
from device_sdk.supernet.plan import Plan, Subnet

NAN, INF = float("nan"), float("inf")


def answer(*logits: tuple[float, ...], source: str = SUBNET) -> Answer:
    output = np.array(logits, dtype=np.float32)
    return Answer(output, (source,) * len(output), 1.0, Task("classification", ("cat", "dog")), Plan(Subnet(())))


@pytest.mark.parametrize("row", [(NAN, NAN), (NAN, 3.0), (3.0, NAN), (INF, 0.0), (INF, INF), (-INF, -INF)])
def test_logits_that_are_not_numbers_have_no_label(row):
    found = answer(row, (0.0, 2.0))
    assert found.labels == (None, "dog")
    assert np.isnan(found.confidence[0])


def test_a_class_that_is_ruled_out_by_infinity_leaves_the_label():
    assert answer((-INF, 2.0)).labels == ("dog",)


def test_an_abstained_answer_has_no_label():
    assert answer((0.0, 2.0), source=ABSTAINED).labels == (None,)
    assert answer((0.0, 2.0), source=ABSTAINED).predictions == ((),)


def test_what_is_no_class_has_no_label_but_predictions():
    output = np.array([[1.0, -1.0], [-1.0, -1.0]], dtype=np.float32)
    for kind, labels in {"multilabel": [["cat"], []], "regression": [["cat", "dog"]] * 2}.items():
        found = Answer(output, (SUBNET,) * 2, 1.0, Task(kind, ("cat", "dog")), Plan(Subnet(())))
        assert found.labels == (None, None)
        assert [[one.label for one in own] for own in found.predictions] == labels
