from __future__ import annotations

import numpy as np
import pytest

from device_sdk.supernet.deciders.port import Seen, confidence, ease, hard
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Entropy, Logistic, Margin, MaxConfidence, Router

LOGITS = np.log(np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [1.0, 1e-30, 1e-30]], dtype=np.float32))


def test_measures_are_those_of_the_softmax():
    np.testing.assert_allclose(confidence(LOGITS), [0.7, 0.4, 1.0], rtol=1e-6)
    np.testing.assert_allclose(Seen(LOGITS).margin, [0.5, 0.05, 1.0], rtol=1e-5)
    expected = [-(0.7 * np.log(0.7) + 0.2 * np.log(0.2) + 0.1 * np.log(0.1)), 1.08050, 0.0]
    np.testing.assert_allclose(Seen(LOGITS).entropy, expected, atol=1e-4)


@pytest.mark.parametrize("decider", [MaxConfidence(0.5), Margin(0.1), Entropy(1.0)])
def test_the_least_sure_sample_is_hard_for_every_kind(decider):
    assert hard(decider, LOGITS).tolist() == [False, True, False]
    assert np.argsort(ease(decider, LOGITS)).tolist() == [1, 0, 2]


def test_extreme_thresholds_take_nothing_and_everything():
    assert not hard(MaxConfidence(0.0), LOGITS).any()
    assert hard(MaxConfidence(UNREACHABLE_CONFIDENCE), LOGITS).all()


def test_huge_logits_overflow_nowhere():
    huge = np.array([[1e30, -1e30, 0.0]], dtype=np.float32)
    for measured in (confidence(huge), Seen(huge).margin, Seen(huge).entropy):
        assert np.isfinite(measured).all()


LENIENT = [
    MaxConfidence(0.0),
    Margin(0.0),
    Entropy(9.0),
    Logistic(0.0, ("top_1", "top_2", "entropy", "logit_margin", "log_sum_exp"), (1.0,) * 5, 0.0),
    Logistic(0.0, ("top_1",), (1.0,), 0.0, (0.0,) * 3, (0.0,) * 3),
    Router(0.0, (2, 2), bytes(4 * Router.weight_count((2, 2)))),
]


@pytest.mark.parametrize("decider", LENIENT, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_hard_for_every_decider(decider, spoiled):
    logits = LOGITS.copy()
    logits[1, 2] = spoiled
    assert hard(decider, logits).tolist() == [False, True, False]
    assert np.argmin(ease(decider, logits)) == 1
