from __future__ import annotations

import numpy as np

from benchmarks.exits.mean_accuracy import _among_present, evenly
from device_sdk.policies.costs.answers import Answers
from device_sdk.supernet.plan import Subnet


def test_among_the_classes_of_the_data_no_other_one_is_answered():
    logits = np.array([[1.0, 2.0, 9.0], [3.0, 2.0, 1.0]], np.float32)
    answers = Answers(Subnet(()), (), (), (logits,), np.array([1, 0]))
    assert answers.right(0).tolist() == [False, True]
    assert _among_present(answers).right(0).tolist() == [True, True]
    assert _among_present(answers).logits[0].dtype == np.float32


def test_fewer_exits_are_those_that_divide_the_time_evenly():
    reach_ms = {3: 1.0, 5: 2.0, 7: 4.0, 9: 5.5, 11: 7.5, 13: 9.0}
    assert sorted(evenly(reach_ms, 2, full_ms=10.0)) == [7, 11]
    assert sorted(evenly(reach_ms, 6, full_ms=10.0)) == sorted(evenly(reach_ms, 9, full_ms=10.0)) == sorted(reach_ms)
