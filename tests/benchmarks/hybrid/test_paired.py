"""Differences on the same images."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hybrid.bench import coverage_deviations
from benchmarks.hybrid.paired import change_points, low_of


def test_the_change_is_in_points_and_its_interval_counts_only_what_changed():
    old = np.array([True, True, False, False])
    new = np.array([True, False, True, True])
    points, half = change_points(new, old)
    assert points == pytest.approx(25.0)
    assert half == pytest.approx(196 * np.std([0, -1, 1, 1]) / 2)
    assert change_points(old, old) == (0.0, 0.0)


def test_the_lower_end_lies_half_a_width_below_the_change():
    assert low_of((1.0, 0.4)) == pytest.approx(0.6)


def test_an_error_of_the_coverage_is_in_units_of_chance():
    assert coverage_deviations(30.0, tuned=500, judged=4000) == pytest.approx(0.0)
    assert coverage_deviations(26.5, tuned=500, judged=4000) == pytest.approx(
        0.035 / (0.21 * (1 / 500 + 1 / 4000)) ** 0.5
    )
    assert coverage_deviations(26.5, tuned=5000, judged=4000) > 2
