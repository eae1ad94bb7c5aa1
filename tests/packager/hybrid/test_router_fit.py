"""Fitting the router with the paper's loss: it learns, holds out whole images, and keeps a coverage."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import DataError
from device_sdk.supernet.deciders.port import ease, hard
from packager.errors import TrainingError
from packager.hybrid.router_fit import RouterFit, fit_routing, right_at, tuned_to_coverage

FIT = RouterFit(coverage=0.7, most_epochs=30)


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
    router = fit_routing(base, global_, labels, 1, FIT)
    gains = base.argmax(axis=1) != labels
    found = ease(router, base)
    assert found[gains].mean() + 0.5 < found[~gains].mean()
    assert right_at(router, base, global_, labels, 0.7).mean() > 0.95


def test_the_same_samples_make_the_same_router(samples):
    assert fit_routing(*samples, 1, FIT) == fit_routing(*samples, 1, FIT)


def test_views_of_an_image_are_held_out_together(samples):
    doubled = [np.concatenate([one, one]) for one in samples]
    assert fit_routing(*doubled, 2, FIT).hidden == FIT.hidden
    with pytest.raises(DataError, match="not 7 views"):
        fit_routing(*samples, 7, FIT)


@pytest.mark.parametrize(("coverage", "sent"), [(0.0, 600), (0.25, 450), (0.7, 180), (1.0, 0)])
def test_the_threshold_keeps_the_coverage(samples, coverage, sent):
    base, global_, labels = samples
    router = tuned_to_coverage(fit_routing(base, global_, labels, 1, FIT), base, coverage)
    assert np.count_nonzero(hard(router, base)) == sent


def test_a_target_of_one_kind_only_is_refused(samples):
    base, _, labels = samples
    with pytest.raises(DataError, match="asking gains for 0 of 600"):
        fit_routing(base, base, labels, 1, FIT)


def test_a_logit_that_is_not_finite_is_refused(samples):
    base, global_, labels = samples
    broken = base.copy()
    broken[3, 1] = np.nan
    with pytest.raises(TrainingError, match="not finite"):
        fit_routing(broken, global_, labels, 1, FIT)
