"""What of the difference between the share sent and the share asked for is chance."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hard_samples.coverage import coverage_errors, fitting_bias, kept_share_errors
from device_sdk.policies.deciding.decider_fitting import Viewed
from device_sdk.supernet.plan import Entropy


def test_eases_that_are_shifted_send_other_shares():
    eases = np.linspace(0, 1, 1001)
    same = coverage_errors(eases, eases)
    assert same["coverage_error_points"] < 0.1
    shifted = coverage_errors(eases, eases + 0.05)
    assert shifted["coverage_error_80"] == pytest.approx(-5.0, abs=0.1)
    assert shifted["coverage_error_points"] == pytest.approx(5.0, abs=0.1)


def test_the_bound_is_what_chance_alone_stays_below():
    random = np.random.default_rng(0)
    found = [coverage_errors(random.uniform(size=500), random.uniform(size=2000)) for _ in range(400)]
    for kept in (90, 80, 70):
        inside = [abs(one[f"coverage_error_{kept}"]) <= one[f"coverage_chance_{kept}"] for one in found]
        assert np.mean(inside) == pytest.approx(0.95, abs=0.03)
    assert found[0]["coverage_bound_points"] == found[0]["coverage_chance_70"]


def test_a_connection_that_keeps_the_share_errs_less_than_a_threshold_from_other_samples():
    random = np.random.default_rng(2)
    logits = (random.normal(size=(2000, 4)) * 3).astype(np.float32)
    assert kept_share_errors(Entropy(0.5), logits)["kept_share_error_points"] < 0.5


def test_cross_fitted_thresholds_send_what_was_asked_for():
    random = np.random.default_rng(1)
    logits = (random.normal(size=(300, 4)) * 3).astype(np.float32)
    easy = random.uniform(size=300) < 0.7
    bias = fitting_bias(logits, easy, Viewed(logits[None], easy[None]))
    assert abs(bias["coverage_bias_points"]) < 4
    assert bias["coverage_bias_bound_points"] > abs(bias["coverage_bias_points"])
