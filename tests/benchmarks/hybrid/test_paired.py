"""Differences on the same images."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hybrid.paired import change_points


def test_the_change_is_in_points_and_its_interval_counts_only_what_changed():
    old = np.array([True, True, False, False])
    new = np.array([True, False, True, True])
    points, half = change_points(new, old)
    assert points == pytest.approx(25.0)
    assert half == pytest.approx(196 * np.std([0, -1, 1, 1]) / 2)
    assert change_points(old, old) == (0.0, 0.0)
