from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from device_sdk.errors import MeasurementError, UsageError
from device_sdk.profiling.speed_reading import SpeedReading, Zone
from device_sdk.profiling.sustained import SustainedProfile, SustainedSample, measure_sustained, settled_s

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MS = 1_000_000


class Device:
    """A device whose calls take as long as ``latency_ms`` says at each second, and which reads as ``reading`` says."""

    def __init__(self, latency_ms, reading=lambda at_s: SpeedReading()):
        self.now_ns, self.latency_ms, self._reading = 5_000_000_000, latency_ms, reading
        self.started_ns = self.now_ns

    @property
    def at_s(self):
        return (self.now_ns - self.started_ns) / 1e9

    def call(self):
        self.now_ns += round(self.latency_ms(self.at_s) * MS)

    def clock(self):
        return self.now_ns

    def read(self):
        return self._reading(self.at_s)

    def zones(self):
        return (Zone("cpu", 40.0 + self.at_s / 10),)


class Shown:
    """Progress that is kept."""

    def __init__(self):
        self.total = self.done = 0.0

    def task(self, name, total, done=0.0):
        self.total = total
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def advance(self, amount=1.0):
        self.done += amount

    def note(self, text):
        pass


def measured(device, seconds=60.0, **more):
    return measure_sustained(
        device.call, seconds=seconds, signals=device, zones=device.zones, clock=device.clock, now=lambda: NOON, **more
    )


def test_a_device_that_keeps_its_speed_is_steady_from_the_start():
    found = measured(Device(lambda at_s: 10.0))
    assert (found.outcome, found.sustained_over_first, found.settled_s) == ("steady", 1.0, 0.0)
    assert (found.calls, len(found.samples), found.created) == (6000, 60, "2026-05-01T12:00:00+00:00")
    assert (found.first.calls, found.last.calls, found.first.seconds) == (600, 601, 6.0)


def heating(at_s):
    return 10.0 if at_s < 30 else 15.0


def test_a_device_that_is_held_back_is_throttled_and_has_settled_since():
    device = Device(heating, lambda at_s: SpeedReading(held_back=("cpufreq",) if at_s > 29 else ()))
    found = measured(device)
    assert (found.outcome, found.sustained_over_first) == ("throttled", 1.5)
    assert (found.first.median_ms, found.last.median_ms, found.last.p95_ms) == (10.0, 15.0, 15.0)
    assert found.settled_s == pytest.approx(32.0, abs=1.1)
    assert [one.zones[0].temperature_c for one in (found.first, found.last)] == pytest.approx([40.6, 46.0], abs=0.01)
    assert found.samples[-1].held_back == ("cpufreq",)


def test_a_frequency_that_falls_is_throttling_too():
    found = measured(Device(heating, lambda at_s: SpeedReading(frequency_mhz=2000.0 if at_s < 30 else 1200.0)))
    assert found.outcome == "throttled"


def taken(from_s, to_s):
    """Others keep a core busy between two times; the process itself is always busy on one of two."""

    def read(at_s):
        others = max(0.0, min(at_s, to_s) - from_s)
        return SpeedReading(
            busy_ticks=round(100 * (at_s + others)), own_ticks=round(100 * at_s), total_ticks=round(200 * at_s), cores=2
        )

    return read


def test_others_that_take_a_core_are_load():
    found = measured(Device(heating, taken(30.0, 99.0)))
    assert found.outcome == "load"
    assert [round(found.samples[at].others_cores, 1) for at in (5, 50)] == [0.0, 1.0]


def test_a_load_at_the_beginning_that_ended_is_named_too():
    found = measured(Device(lambda at_s: 15.0 if at_s < 10 else 10.0, taken(0.0, 10.0)))
    assert found.sustained_over_first == pytest.approx(2 / 3)
    assert found.outcome == "load"


def test_a_load_that_slows_few_of_many_short_calls_is_seen_by_the_mean():
    calls = iter(range(10**6))
    found = measured(Device(lambda at_s: 11.0 if at_s > 30 and next(calls) % 10 == 0 else 1.0, taken(30.0, 99.0)))
    assert (found.sustained_over_first, found.outcome) == (1.0, "load")
    assert found.last.mean_ms == pytest.approx(2.0, rel=0.01)


def test_a_system_that_tells_nothing_leaves_the_cause_unknown():
    assert measured(Device(heating)).outcome == "unknown"


def test_a_device_that_slows_down_at_the_very_end_has_not_settled():
    found = measured(Device(lambda at_s: 10.0 if at_s < 57 else 20.0))
    assert found.settled_s is None


def test_stages_of_a_long_run_are_a_minute_and_its_samples_grow():
    found = measured(Device(lambda at_s: 2000.0), seconds=4 * 3600.0)
    assert (found.first.seconds, found.last.seconds) == (60.0, 60.0)
    assert len(found.samples) <= 3600


def test_calls_longer_than_a_stage_still_fill_both():
    found = measured(Device(lambda at_s: 7000.0), seconds=10.0)
    assert (found.calls, found.first.calls, found.last.calls) == (2, 1, 1)


def test_a_cancelled_run_has_no_result():
    device = Device(lambda at_s: 10.0)
    assert measured(device, cancelled=lambda: device.at_s > 20) is None


def test_progress_counts_the_seconds():
    shown = Shown()
    measured(Device(lambda at_s: 10.0), progress=shown)
    assert (shown.total, shown.done) == (60.0, pytest.approx(60.0, abs=1.0))


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1.9, 1e9, float("nan")])
def test_durations_that_show_nothing_are_refused(seconds):
    with pytest.raises(UsageError, match="cannot take"):
        measured(Device(lambda at_s: 10.0), seconds=seconds)


def test_a_clock_that_stands_still_ends_in_an_error():
    with pytest.raises(MeasurementError, match="stands still"):
        measured(Device(lambda at_s: 0.0))


def test_a_result_is_written_and_read_again():
    found = measured(Device(heating, taken(30.0, 99.0)))
    assert msgspec.json.decode(msgspec.json.encode(found), type=SustainedProfile) == found


def test_single_slow_seconds_do_not_count_as_unsettled():
    samples = [
        SustainedSample(at_s=at + 1.0, calls=1, median_ms=30.0 if at == 30 else 10.0, p95_ms=1.0) for at in range(60)
    ]
    assert settled_s(samples, 10.0, before_s=54.0) == 0.0
