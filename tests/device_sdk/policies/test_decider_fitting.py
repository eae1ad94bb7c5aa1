from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import InputError
from device_sdk.execution.deciders import confidence, ease, hard
from device_sdk.policies.decider_fitting import ALL_FEATURES, TOP_TWO, fit_logistic


@pytest.fixture
def logits():
    return np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32) * 3


def test_the_estimate_recovers_the_odds_that_answers_were_drawn_with(logits):
    chances = 1 / (1 + np.exp(-(8 * confidence(logits) - 5)))
    right = np.random.default_rng(1).uniform(size=400) < chances
    found = fit_logistic(logits, right, features=TOP_TWO, by_class=False)
    assert np.abs(ease(found, logits) - chances).mean() < 0.06


@pytest.mark.parametrize("features", [TOP_TWO, ALL_FEATURES])
def test_samples_below_the_threshold_of_the_estimate_are_hard(logits, features):
    right = confidence(logits) > 0.7
    found = fit_logistic(logits, right, features=features)
    assert found.features == features
    assert np.array_equal(hard(found, logits), ease(found, logits) < 0.5)
    assert (hard(found, logits) == ~right).mean() > 0.9


def test_classes_that_are_confused_more_often_count_as_harder():
    random = np.random.default_rng(3)
    logits = random.normal(size=(2000, 4)).astype(np.float32)
    answers = logits.argmax(axis=1)
    right = random.uniform(size=2000) < np.where(answers == 2, 0.5, 0.95)
    found, blind = fit_logistic(logits, right), fit_logistic(logits, right, by_class=False)
    assert (len(found.by_answer), len(found.by_runner_up)) == (4, 4)
    assert np.argmin(found.by_answer) == 2
    assert np.abs(ease(found, logits)[answers == 2].mean() - 0.5) < 0.05
    assert blind.by_answer == ()


def test_with_many_classes_there_is_no_number_for_each():
    logits = np.random.default_rng(4).normal(size=(300, 100)).astype(np.float32)
    assert fit_logistic(logits, np.arange(300) % 3 > 0).by_answer == ()


def test_the_mean_estimate_is_the_share_of_right_answers(logits):
    right = np.random.default_rng(2).uniform(size=400) < 0.8
    found = fit_logistic(logits, right)
    assert ease(found, logits).mean() == pytest.approx(right.mean(), abs=1e-3)


@pytest.mark.parametrize("right", [True, False])
def test_answers_of_one_kind_teach_nothing(logits, right):
    assert fit_logistic(logits, np.full(400, right)) is None


def test_a_feature_that_never_changes_does_no_harm():
    logits = np.tile(np.array([[1.0, 0.0]], dtype=np.float32), (6, 1))
    found = fit_logistic(logits, np.array([True, False] * 3))
    assert np.allclose(ease(found, logits), 0.5)


def test_samples_that_cannot_be_learned_from_are_refused(logits):
    with pytest.raises(InputError, match="400 samples and 3 outcomes"):
        fit_logistic(logits, np.array([True, False, True]))
    logits[0, 0] = np.nan
    with pytest.raises(InputError, match="not finite"):
        fit_logistic(logits, np.arange(400) % 2 == 0)
