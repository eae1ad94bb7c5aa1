from __future__ import annotations

import math

import pytest

from device_sdk.errors import UsageError
from device_sdk.machine import memory_bytes, peak_resident_bytes
from packager.planning.run_plan import MinutesLimit, memory_in_use, memory_limit


def test_what_is_kept_for_later_is_not_left():
    now = [0.0]
    budget = MinutesLimit(600.0, lambda: now[0])
    assert budget.left() == 600
    now[0] = 200.0
    assert budget.spent == 200
    assert budget.left(after=150) == 250
    now[0] = 900.0
    assert budget.left() == 0


def test_without_minutes_there_is_no_end():
    assert MinutesLimit(None, lambda: 1e9).left(after=5) == math.inf


def test_half_of_the_machine_is_the_limit_unless_it_is_said():
    assert memory_limit(None) == memory_bytes() // 2
    assert memory_limit(1.5) == 1_500_000_000


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_that_is_none_is_refused(wrong):
    with pytest.raises(UsageError, match="not a limit for memory"):
        memory_limit(wrong)


def test_resident_memory_lies_below_its_peak():
    resident, peak = memory_in_use(), peak_resident_bytes()
    assert peak is None or 10_000_000 < resident < 1.01 * peak  # the kernel counts both a little late
