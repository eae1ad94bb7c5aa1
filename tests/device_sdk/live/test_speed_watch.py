from __future__ import annotations

from device_sdk.live.speed_watch import SpeedWatch
from device_sdk.profiling.speed_reading import SpeedReading


class Told:
    """Readings that are told one after the other; the last one stays."""

    def __init__(self, *readings):
        self.left, self.count = list(readings), 0

    def read(self):
        self.count += 1
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


class Time:
    def __init__(self):
        self.now_s, self.waited = 0.0, []

    def __call__(self):
        return self.now_s


def watch(*readings):
    signals, time = Told(*readings), Time()
    made = SpeedWatch(signals, clock=time, wait=time.waited.append)
    made.begin()
    return made, signals, time


HOT = SpeedReading(held_back=("cpufreq",))


def test_what_the_system_states_is_told_without_waiting():
    made, _, time = watch(SpeedReading(), HOT)
    assert (made.stated(), time.waited) == ("throttled", [])


def test_what_held_when_it_began_is_not_told():
    made, _, _ = watch(HOT, HOT)
    assert made.stated() == "unknown"


def test_a_statement_is_read_again_after_a_quarter_of_a_second():
    made, signals, time = watch(SpeedReading(), HOT, SpeedReading())
    assert [made.stated(), made.stated()] == ["throttled", "throttled"]
    assert signals.count == 2
    time.now_s = 0.25
    assert made.stated() == "unknown"


def test_a_clock_that_was_set_back_reads_again():
    made, _, time = watch(SpeedReading(), HOT, SpeedReading())
    assert made.stated() == "throttled"
    time.now_s = -5.0
    assert made.stated() == "unknown"


def test_load_is_counted_over_a_moment():
    recent, now = SpeedReading(run_ns=100, waited_ns=0), SpeedReading(run_ns=200, waited_ns=100)
    made, _, time = watch(SpeedReading(), recent, now)
    assert (made.explained(), time.waited) == ("load", [0.05])
