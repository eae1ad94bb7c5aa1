from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from device_sdk.logs.adaptation_log import LogLine
from server.fleet.device_state import Seen
from server.fleet.hours import first_day, hours_of, newly

NOON = "2026-05-01T12:00:00.000+00:00"


def seen_at(log_line, time, received=NOON, **fields):
    line = log_line(0, "adapted", **fields) if fields else log_line(0)
    return Seen(time, received, msgspec.convert(line, LogLine))


def test_a_device_is_seen_when_its_lines_arrive_and_is_over_budget_when_it_says_so(log_line):
    late = seen_at(log_line, "2026-04-29T23:10:00.000+00:00", measured_ms=9.0)
    assert hours_of([late], since="2026-02-01") == {
        ("2026-05-01", "seen"): 1 << 12,
        ("2026-04-29", "over_budget"): 1 << 23,
    }


def test_days_before_those_that_are_kept_are_left_out(log_line):
    old = seen_at(log_line, "1999-01-01T00:00:00.000+00:00", measured_ms=9.0)
    assert hours_of([old], since="2026-02-01") == {("2026-05-01", "seen"): 1 << 12}
    assert first_day(datetime(2026, 5, 1, tzinfo=UTC)) == "2026-01-31"


def test_hours_count_once_and_the_day_with_its_first():
    day = ("2026-05-01", "seen")
    days, periods = newly({}, {day: 0b101})
    assert days == {day: 0b101}
    assert periods == [
        ("day", "2026-05-01", "seen"),
        ("hour", "2026-05-01T00", "seen"),
        ("hour", "2026-05-01T02", "seen"),
    ]
    assert newly(days, {day: 0b100}) == ({}, [])
    assert newly(days, {day: 0b110}) == ({day: 0b111}, [("hour", "2026-05-01T01", "seen")])
