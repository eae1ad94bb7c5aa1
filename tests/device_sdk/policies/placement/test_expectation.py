from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.policies.placement import ExitCandidate, StopTimes, expectation


def test_a_weighted_expectation_is_the_integral_over_the_density() -> None:
    exits = [ExitCandidate("x1", 1, 0.5, 2.0, 1.0, 1), ExitCandidate("x2", 2, 0.8, 5.0, 1.0, 1)]
    stop_times = StopTimes((0.4, 1.0), (1.0, 3.0))
    times = (np.arange(200_000) + 0.5) / 20_000  # midpoints up to 10
    density = np.where(times < 4.0, 0.25 / 4.0, 0.75 / 6.0)
    accuracy = np.select([times >= 7.0, times >= 3.0], [0.8, 0.5], 0.0)
    integral = float((density * accuracy).sum()) / 20_000
    assert expectation(exits, full_time=10.0, stop_times=stop_times) == pytest.approx(integral, abs=1e-6)


def test_the_survival_of_arrays_is_that_of_numbers() -> None:
    survival = StopTimes((0.25, 0.5, 1.0), (1.0, 0.0, 3.0)).survival(8.0)
    times = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0])
    assert survival.at(times).tolist() == [survival(time) for time in times]
    assert survival.at(times).tolist() == [1.0, 0.875, 0.75, 0.75, 0.75, 0.375, 0.0, 0.0]


@pytest.mark.parametrize(
    ("until", "weight"),
    [
        ((), ()),
        ((0.5,), (1.0,)),
        ((0.5, 0.5, 1.0), (1.0, 1.0, 1.0)),
        ((1.0,), (0.0,)),
        ((1.0,), (float("nan"),)),
        ((0.5, 1.0), (1.0, -1.0)),
        ((0.5, 1.0), (1.0,)),
        ((float("nan"), 1.0), (1.0, 1.0)),
    ],
)
def test_stop_times_that_are_no_distribution_are_refused(until, weight):
    with pytest.raises(UsageError, match="stop times"):
        StopTimes(until, weight)
