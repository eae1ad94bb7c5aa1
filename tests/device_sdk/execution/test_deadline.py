from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.execution.stepped_plan import KEPT_RUNS, StepTimes, answer_times_ms, last_in_time, slowness

TYPICAL = [1.0, 2.0, 4.0]
steps = st.lists(st.floats(0.1, 100), min_size=3, max_size=3)


def test_without_runs_the_typical_times_count():
    assert answer_times_ms([], TYPICAL) == [1.0, 3.0, 7.0]
    assert answer_times_ms([], TYPICAL, present_slowness=2.0) == [2.0, 6.0, 14.0]


def test_what_a_run_did_not_reach_counts_as_typical_at_the_present_slowness():
    assert answer_times_ms([[2.0]], TYPICAL) == [2.0, 6.0, 14.0]
    assert answer_times_ms([[2.0, 2.0]], TYPICAL) == pytest.approx([2.0, 4.0, 4.0 + 4 * 4 / 3])


def test_a_pause_in_any_step_delays_all_answers_behind_it():
    runs = [[1.0, 2.0, 4.0]] * 5 + [[1.0, 12.0, 4.0]]
    assert answer_times_ms(runs, TYPICAL) == [1.0, 13.0, 17.0]


def test_one_run_in_a_hundred_may_be_slower():
    runs = [[1.0, 2.0, 4.0]] * 99
    assert answer_times_ms([*runs, [50.0]], TYPICAL) == [1.0, 3.0, 7.0]
    assert answer_times_ms([*runs, [50.0], [40.0]], TYPICAL)[0] == 40.0


def test_the_last_runs_say_how_slow_the_device_is():
    assert slowness([], TYPICAL) == 1.0
    assert slowness([[1.0]] * 20 + [[3.0], [3.0, 6.0]] * 3, TYPICAL) == 3.0
    assert slowness([[3.0]] * 20 + [[1.0, 2.0, 4.0]] * 5, TYPICAL) == 1.0


def test_ordinary_calls_can_only_make_it_slower():
    runs = [[2.0, 4.0, 8.0]] * 10
    assert answer_times_ms(runs, TYPICAL, present_slowness=1.0) == [2.0, 6.0, 14.0]
    assert answer_times_ms(runs, TYPICAL, present_slowness=6.0) == [6.0, 18.0, 42.0]


@given(st.lists(steps.flatmap(lambda run: st.integers(1, 3).map(lambda count: run[:count])), max_size=150), steps)
def test_later_answers_are_never_there_earlier(runs, typical):
    times = answer_times_ms(runs, typical)
    assert len(times) == 3
    assert times == sorted(times)


@given(st.lists(steps, min_size=1, max_size=150), st.floats(0, 400))
def test_the_chosen_step_was_in_time_in_nearly_all_runs(runs, deadline_ms):
    times = answer_times_ms(runs, TYPICAL)
    last = last_in_time(times, deadline_ms)
    if last is None:
        assert times[0] > deadline_ms
    else:
        late = np.cumsum(runs, axis=1)[:, last] > deadline_ms
        assert late.sum() <= 0.01 * len(runs)
        assert last == 2 or times[last + 1] > deadline_ms


def test_only_the_last_runs_count():
    times = StepTimes(TYPICAL)
    times.record([])
    assert times.answer_times_ms() == [1.0, 3.0, 7.0]
    for _ in range(5):
        times.record([9.0, 9.0, 9.0])
    assert times.answer_times_ms() == [9.0, 18.0, 27.0]
    for _ in range(KEPT_RUNS):
        times.record(TYPICAL)
    assert times.answer_times_ms() == [1.0, 3.0, 7.0]
    assert times.slowness() == 1.0


def test_old_runs_are_forgotten_but_for_the_last_few():
    now = [0.0]
    times = StepTimes(TYPICAL, clock=lambda: now[0])
    for _ in range(50):
        times.record([9.0, 9.0, 9.0])
    now[0] = 3.0
    assert times.answer_times_ms() == [9.0, 18.0, 27.0]  # nothing newer is known
    for _ in range(9):
        times.record(TYPICAL)
    assert times.answer_times_ms() == [1.0, 3.0, 7.0]
