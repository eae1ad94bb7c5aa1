"""The router of a hybrid: it learns from gains, holds out whole images, and keeps a coverage; turns that help."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import DataError
from device_sdk.supernet.deciders.port import ease, hard
from packager.errors import TrainingError
from packager.hybrid.deciding import RoutingSamples, fit_router, helps, right_at, tuned_to_coverage


@pytest.fixture(scope="module")
def samples():
    """A base that is right where it is sure, and a global that is always right: logits twice, labels."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 600)
    sure = random.random(600)
    answers = np.where(sure > 0.3, labels, (labels + 1) % 5)
    base = random.normal(0, 0.1, (600, 5)).astype(np.float32)
    base[np.arange(600), answers] += (0.2 + 3 * sure).astype(np.float32)
    global_ = np.zeros((600, 5), np.float32)
    global_[np.arange(600), labels] = 5.0
    return base, global_, labels


def test_samples_that_gain_are_found_harder(samples):
    base, global_, labels = samples
    fitted = fit_router(RoutingSamples(base, global_, labels, 1))
    gains = base.argmax(axis=1) != labels
    found = ease(fitted.decider, base)
    assert found[gains].mean() + 0.5 < found[~gains].mean()
    assert right_at(fitted.eases, base, global_, labels, 0.7).mean() > 0.95


def test_a_global_that_knows_some_classes_only_is_asked_about_these(samples):
    base, global_, labels = samples
    knows = labels < 2
    specialist = np.where(knows[:, None], global_, -global_)
    router = fit_router(RoutingSamples(base, specialist, labels, 1)).decider
    sent = np.argsort(ease(router, base))[:60]
    assert (base.argmax(axis=1)[sent] <= 2).mean() > 0.9  # 2 is the wrong answer to class 1


def test_views_of_an_image_are_held_out_together(samples):
    doubled = [np.concatenate([one, one]) for one in samples]
    assert len(fit_router(RoutingSamples(*doubled, 2)).eases) == 600
    with pytest.raises(DataError, match="not 7 views"):
        RoutingSamples(*samples, 7)


@pytest.mark.parametrize(("coverage", "sent"), [(0.0, 600), (0.25, 450), (0.7, 180), (1.0, 0)])
def test_the_threshold_keeps_the_coverage(samples, coverage, sent):
    router = fit_router(RoutingSamples(*samples, 1)).decider
    assert np.count_nonzero(hard(tuned_to_coverage(router, samples[0], coverage), samples[0])) == sent


def test_a_target_of_one_kind_only_is_refused(samples):
    base, _, labels = samples
    with pytest.raises(DataError, match="asking gains for 0 of 600"):
        fit_router(RoutingSamples(base, base, labels, 1))


def test_a_logit_that_is_not_finite_is_refused(samples):
    base, global_, labels = samples
    broken = base.copy()
    broken[3, 1] = np.nan
    with pytest.raises(TrainingError, match="not finite"):
        RoutingSamples(broken, global_, labels, 1)


@pytest.mark.parametrize(
    ("won", "lost", "kept"), [(0, 0, False), (1, 0, False), (2, 0, True), (9, 6, False), (12, 4, True)]
)
def test_a_turn_helps_if_it_wins_more_than_chance_would(won, lost, kept):
    before = np.arange(100) < 50
    after = before.copy()
    after[:lost] = False
    after[50 : 50 + won] = True
    assert helps(before, after) is kept
