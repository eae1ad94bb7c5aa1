from __future__ import annotations

import pytest

from packager.training.schedule import Schedule


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_steps_are_counted_whatever_the_clock_says(clock):
    schedule = Schedule(steps=4, seconds=None, clock=clock)
    shares = []
    while not schedule.over:
        shares.append(schedule.progress)
        schedule.done += 1
        clock.now_s += 1e6
    assert shares == [0, 0.25, 0.5, 0.75]
    assert schedule.progress == 1.0


def test_seconds_are_counted_whatever_the_steps(clock):
    schedule = Schedule(steps=None, seconds=10, clock=clock)
    schedule.done = 10**9
    assert (schedule.progress, schedule.over) == (0.0, False)
    clock.now_s += 5
    assert (schedule.elapsed, schedule.progress, schedule.over) == (5, 0.5, False)
    clock.now_s += 6
    assert (schedule.elapsed, schedule.progress, schedule.over) == (11, 1.0, True)


def test_a_resumed_phase_goes_on_from_its_steps(clock):
    schedule = Schedule(steps=10, seconds=None, done=7, clock=clock)
    assert schedule.progress == 0.7
    schedule.done += 3
    assert schedule.over


def test_a_resumed_phase_goes_on_from_its_seconds(clock):
    schedule = Schedule(steps=None, seconds=10, done=70, elapsed=7.5, clock=clock)
    assert schedule.progress == 0.75
    clock.now_s += 2.5
    assert schedule.over


@pytest.mark.parametrize("length", [{"steps": 0, "seconds": None}, {"steps": None, "seconds": 0.0}])
def test_a_phase_without_length_is_over_at_once(length, clock):
    assert Schedule(**length, clock=clock).over


def test_the_rate_warms_up_linearly_and_falls_like_a_cosine():
    schedule = Schedule(steps=1000, seconds=None)
    rates = []
    for step in range(1000):
        schedule.done = step
        rates.append(schedule.rate(0.5))
    peak = rates.index(max(rates))
    assert peak == 30  # 3 % of the steps
    assert rates[peak] == pytest.approx(0.5)
    assert rates[15] == pytest.approx(0.25)
    assert rates[:31] == sorted(rates[:31])
    assert rates[30:] == sorted(rates[30:], reverse=True)
    assert rates[515] == pytest.approx(0.25, rel=0.01)  # half way down
    assert 0 < rates[0] <= 0.025
    assert 0 < rates[-1] <= 0.0005


def test_a_resumed_phase_has_the_rate_of_an_uninterrupted_one():
    uninterrupted = Schedule(steps=50, seconds=None)
    uninterrupted.done = 33
    assert Schedule(steps=50, seconds=None, done=33).rate(0.1) == uninterrupted.rate(0.1)


def test_a_phase_that_is_cut_short_winds_down_within_a_tenth_of_its_steps():
    schedule = Schedule(steps=1000, seconds=None, done=200)
    before = schedule.rate(0.5)
    schedule.wind_down()
    assert schedule.winding_from == (200, 0.2)
    seen = []
    while not schedule.over:
        seen.append((schedule.progress, schedule.rate(0.5)))
        schedule.done += 1
        assert schedule.done < 1000
    assert schedule.done == 220
    assert seen[0] == (0.2, pytest.approx(before))
    assert [progress for progress, _ in seen] == sorted(progress for progress, _ in seen)
    assert [rate for _, rate in seen] == sorted((rate for _, rate in seen), reverse=True)
    assert seen[-1][1] < 0.1 * before
    schedule.wind_down()
    assert schedule.winding_from == (200, 0.2)  # once


def test_a_resumed_winding_goes_on_where_it_was():
    schedule = Schedule(steps=1000, seconds=None, done=210, winding_from=(200, 0.2))
    uninterrupted = Schedule(steps=1000, seconds=None, done=200)
    uninterrupted.wind_down()
    uninterrupted.done = 210
    assert schedule.rate(0.1) == uninterrupted.rate(0.1)
    assert schedule.progress == uninterrupted.progress == pytest.approx(0.6)


def test_winding_down_never_outlasts_what_was_planned():
    schedule = Schedule(steps=100, seconds=None, done=98)
    schedule.wind_down()
    schedule.done = 100
    assert schedule.over
