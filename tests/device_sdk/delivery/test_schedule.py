from __future__ import annotations

import pytest

from benchmarks.faults.tools.clocks import FrozenClock, JumpingClock
from device_sdk.delivery.schedule import LONGEST_PAUSE_S, MinimumRate, Schedule, TooSlowError, transient
from device_sdk.errors import DeadlineError, ProtocolError, RefusedError, TransferError


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def schedule(self, total_s: float = 1000.0, attempts: int = 5) -> Schedule:
        return Schedule(3.0, self.now_s + total_s, attempts, self.sleep, self)


def failing(times: int, error: TransferError):
    calls = []

    def call(deadlines):
        calls.append(deadlines)
        if len(calls) <= times:
            raise error
        return "done"

    return call, calls


def test_a_passing_failure_is_tried_again_after_growing_pauses():
    time = Time()
    call, calls = failing(4, TransferError("cut"))
    assert time.schedule().retry(call) == "done"
    assert len(calls) == 5
    assert time.pauses == sorted(time.pauses)
    assert len(set(time.pauses)) == 4


def test_the_last_attempt_raises():
    call, calls = failing(5, TransferError("cut"))
    with pytest.raises(TransferError, match="cut"):
        Time().schedule().retry(call)
    assert len(calls) == 5


@pytest.mark.parametrize("error", [RefusedError("no", status=404), ProtocolError("garbage")])
def test_a_lasting_failure_is_not_tried_again(error):
    call, calls = failing(1, error)
    with pytest.raises(type(error)):
        Time().schedule().retry(call)
    assert len(calls) == 1


def test_pauses_are_bounded():
    time = Time()
    for failures in (0, 1, 20, 10**6):
        time.schedule().pause(failures)
    assert max(time.pauses) == LONGEST_PAUSE_S


def test_every_request_gets_what_is_left_of_the_whole():
    time = Time()
    schedule = time.schedule(total_s=10.0)
    time.now_s += 4.0
    assert (schedule.left().idle_s, schedule.left().total_s) == (3.0, 6.0)


def test_no_attempt_and_no_pause_begins_after_the_end():
    time = Time()
    call, calls = failing(100, TransferError("cut"))
    with pytest.raises(DeadlineError, match="deadline"):
        time.schedule(total_s=1.0, attempts=50).retry(call)
    assert sum(time.pauses) == pytest.approx(1.0)
    assert len(calls) < 10


LASTING, PASSING = (302, 400, 401, 404, 416), (408, 429, 500, 503)


@pytest.mark.parametrize("status", [*LASTING, *PASSING])
def test_which_refusals_pass(status):
    assert transient(RefusedError("no", status=status)) is (status in PASSING)


def test_slowness_passes():
    assert transient(DeadlineError("slow"))


def test_a_server_below_the_minimum_rate_is_given_up_and_not_tried_again():
    clock = FrozenClock()
    rate = MinimumRate(clock, bytes_per_s=100.0, window_s=10.0)
    for _ in range(20):
        rate.received(1)
        clock.sleep(0.5)
    with pytest.raises(TooSlowError, match="less than 100 bytes per second for 10 s") as caught:
        rate.received(1)
    assert not transient(caught.value)


def test_each_window_counts_alone_and_bursts_are_enough():
    clock = FrozenClock()
    rate = MinimumRate(clock, bytes_per_s=100.0, window_s=10.0)
    for _ in range(5):
        rate.received(1000)
        clock.sleep(10.0)
        rate.received(1)


@pytest.mark.parametrize("step_s", [-1000.0, 0.0])
def test_a_clock_that_stands_still_or_jumps_back_fails_nothing(step_s):
    rate = MinimumRate(JumpingClock([0.0, step_s, 1.0]), bytes_per_s=100.0, window_s=10.0)
    for _ in range(5):
        rate.received(1)
