from __future__ import annotations

import numpy as np
import pytest

from device_sdk.live.mix_follower import MixSettings, RunningMix
from device_sdk.supernet.plan import Prior

CLASSES = 10
SETTINGS = MixSettings(window=200, least_answers=50)


def drawn(mix: np.ndarray, count: int, *, prior: Prior | None = None, seed: int = 0) -> np.ndarray:
    """Logits [count, classes] of a calibrated model under ``prior``, for samples whose classes ``mix`` gives."""
    random = np.random.default_rng(seed)
    labels = random.choice(CLASSES, size=count, p=mix)
    features = random.normal(size=(count, CLASSES))
    features[np.arange(count), labels] += 2.0
    offsets = 0.0 if prior is None else prior.temperature * np.array(prior.log_ratios)
    return (2.0 * features + offsets).astype(np.float32)


def few(*classes: int) -> np.ndarray:
    mix = np.zeros(CLASSES)
    mix[list(classes)] = 1 / len(classes)
    return mix


UNIFORM = np.full(CLASSES, 1 / CLASSES)


def fed(mix: np.ndarray, count: int, prior: Prior | None = None, seed: int = 0) -> RunningMix:
    running = RunningMix(CLASSES, prior, SETTINGS)
    running.take(drawn(mix, count, prior=prior, seed=seed))
    return running


def test_a_mix_of_two_classes_is_found_from_the_answers():
    prior = fed(few(3, 7), 150).due()
    assert prior is not None
    assert set(np.argsort(prior.log_ratios)[-2:]) == {3, 7}
    assert np.exp(prior.log_ratios).sum() == pytest.approx(CLASSES)


def test_the_mix_of_the_training_data_needs_no_prior():
    assert [fed(UNIFORM, 400, seed=seed).due() for seed in range(20)].count(None) >= 19


def test_a_prior_that_still_holds_stays():
    prior = fed(few(3, 7), 300).due()
    assert [fed(few(3, 7), 300, prior, seed).due() for seed in range(1, 11)].count(None) >= 9


@pytest.mark.parametrize("new", [few(1, 2), UNIFORM])
def test_a_prior_that_holds_no_more_is_replaced(new):
    old = fed(few(3, 7), 300).due()
    running = fed(new, 400, old, seed=1)
    prior = running.due()
    assert prior is not None
    shares = np.exp(prior.log_ratios) / CLASSES
    assert np.abs(shares - new).sum() / 2 < 0.25
    assert running.moved_to(prior) > 0.5


def test_no_prior_before_so_many_answers():
    assert fed(few(3, 7), SETTINGS.least_answers - 1).due() is None


def test_old_answers_fade():
    running = RunningMix(CLASSES, None, SETTINGS)
    running.take(drawn(few(3, 7), 1000))
    running.take(drawn(few(0, 1), 1000, seed=1))
    assert running.shares[[0, 1]].sum() > 0.8


def test_answers_that_are_not_numbers_do_not_count():
    running = fed(few(3, 7), 100)
    before = running.shares
    running.take(np.full((5, CLASSES), np.nan, dtype=np.float32))
    running.take(np.full((5, CLASSES), np.inf, dtype=np.float32))
    assert running.answers == 100
    assert np.array_equal(running.shares, before)


def test_a_class_that_was_not_seen_keeps_a_share():
    running = fed(few(3), 2000)
    assert running.shares.min() > 1e-4
    assert running.shares.sum() == pytest.approx(1)
