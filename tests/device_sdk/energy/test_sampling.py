from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.energy.port import MeanPower, measure_by_sampling

steps_s = st.floats(0.001, 100)
powers_w = st.floats(0, 1000)


def mean_of(readings: list[tuple[float, float]]) -> float | None:
    mean = MeanPower()
    for at_s, watts in readings:
        mean.add(at_s, watts)
    return mean.mean_w


@given(st.lists(st.tuples(steps_s, powers_w), min_size=2, max_size=20))
def test_the_mean_is_the_area_below_the_readings_over_their_time(pairs):
    times_s = np.cumsum([step for step, _ in pairs])
    watts = np.array([power for _, power in pairs])
    expected = np.trapezoid(watts, times_s) / (times_s[-1] - times_s[0])
    assert mean_of(list(zip(times_s, watts, strict=True))) == pytest.approx(expected)


@given(st.lists(st.tuples(steps_s, powers_w), min_size=1, max_size=20))
def test_the_mean_lies_between_the_lowest_and_the_highest_reading(pairs):
    times_s = np.cumsum([step for step, _ in pairs])
    watts = [power for _, power in pairs]
    mean = mean_of(list(zip(times_s, watts, strict=True)))
    assert min(watts) - 1e-6 <= mean <= max(watts) + 1e-6


def test_one_reading_is_its_own_mean_and_none_is_unknown():
    assert mean_of([(1.0, 7.0)]) == 7.0
    assert mean_of([(1.0, 7.0), (1.0, 7.0)]) == 7.0
    assert mean_of([]) is None


def test_it_reads_in_between_but_not_more_often_than_told():
    reads = []

    def power_w() -> float:
        reads.append(time.perf_counter())
        return 3.0

    def work() -> None:
        while len(reads) < 4:
            time.sleep(0.01)

    energy = measure_by_sampling(power_w, work, source="test", interval_s=0.05)
    assert len(reads) >= 5  # one before, one after
    assert min(np.diff(reads)[:-1]) >= 0.049
    assert energy.energy_mj == pytest.approx(3000 * energy.seconds)


def test_readings_that_fail_are_left_out():
    readings = iter([None, 5.0])
    energy = measure_by_sampling(lambda: next(readings), lambda: None, source="test", interval_s=10)
    assert energy.mean_w == pytest.approx(5)
