from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from device_sdk.errors import UsageError
from device_sdk.logs.adaptation_log import AdaptationLog, Adapted, Infeasible, LogLine, Opened, Profiled, read_log
from tests.published_schemas import published

SCHEMA = Path(__file__).parents[3] / "docs" / "adaptation_log.schema.json"
WRITE_SCHEMA = (
    'python -c "import json, msgspec; from device_sdk.logs.adaptation_log import LogLine; '
    'print(json.dumps(msgspec.json.schema(LogLine), indent=1))" > docs/adaptation_log.schema.json'
)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
EVENTS = [
    Opened(subnet="o0 o1", restored=False),
    Profiled(original_ms=1.5, scale=0.8, offset_ms=-0.1, median_error=0.02),
    Adapted(1.0, None, "m0-2", 0.9, 0.95, 1000, 0.5, None, 10, 3, 0.1, "done"),
    Infeasible(None, 2.0, "m0-2", 0.7),
]


def log_at(path: Path) -> AdaptationLog:
    return AdaptationLog(path, bundle="b" * 64, runtime="fake", now=lambda: NOON)


def test_what_is_written_is_read(tmp_path):
    log = log_at(tmp_path / "deep" / "log.jsonl")
    for event in EVENTS:
        log.write(event)
    lines = list(read_log(log.path))
    assert [line.event for line in lines] == EVENTS
    assert {(line.schema, line.bundle, line.runtime, line.time) for line in lines} == {
        (1, "b" * 64, "fake", "2026-05-01T12:00:00.000+00:00")
    }


def test_every_line_is_one_json_object(tmp_path):
    log = log_at(tmp_path / "log.jsonl")
    for event in EVENTS:
        log.write(event)
    lines = log.path.read_text().splitlines()
    assert [json.loads(line)["event"]["event"] for line in lines] == [
        "opened",
        "profiled",
        "adapted",
        "infeasible",
    ]


def test_the_published_schema_is_that_of_the_types():
    assert json.loads(SCHEMA.read_text()) == published(msgspec.json.schema(LogLine)), WRITE_SCHEMA


def test_an_older_log_goes_on(tmp_path):
    log_at(tmp_path / "log").write(EVENTS[0])
    log_at(tmp_path / "log").write(EVENTS[1])
    assert len(list(read_log(tmp_path / "log"))) == 2


def test_a_last_line_that_was_cut_short_is_left_out(tmp_path):
    log = log_at(tmp_path / "log")
    log.write(EVENTS[0])
    log.write(EVENTS[1])
    whole = log.path.read_bytes()
    for cut in range(1, len(whole) - whole.index(b"\n") - 1):
        log.path.write_bytes(whole[:-cut])
        assert [line.event for line in read_log(log.path)] == EVENTS[:1]


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"no JSON", b"\xff", b'{"x":' + b"[" * 100_000, b'{"schema":1,"time":"","bundle":""}']
)
def test_a_broken_line_is_named(tmp_path, line):
    log = log_at(tmp_path / "log")
    log.write(EVENTS[0])
    with log.path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(UsageError, match=r"line 2 of .*log breaks the schema"):
        list(read_log(log.path))


def test_fields_of_a_later_version_are_ignored(tmp_path):
    log = log_at(tmp_path / "log")
    log.write(EVENTS[0])
    log.path.write_bytes(log.path.read_bytes().replace(b'"schema":1', b'"schema":1,"later":[{}]'))
    assert [line.event for line in read_log(log.path)] == EVENTS[:1]


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the log .*nothing"):
        list(read_log(tmp_path / "nothing"))


@pytest.mark.parametrize("place", ["under a file", "a folder", "a full disk"])
def test_a_log_that_cannot_be_written_is_reported_once_and_stops_nothing(tmp_path, caplog, place):
    (tmp_path / "file").write_text("")
    path = {"under a file": tmp_path / "file" / "log", "a folder": tmp_path, "a full disk": Path("/dev/full")}[place]
    if place == "a full disk" and not path.exists():
        pytest.skip("needs /dev/full")
    log = log_at(path)
    with caplog.at_level(logging.WARNING):
        for event in EVENTS:
            log.write(event)
    assert len(caplog.records) == 1
    assert f"the adaptation log {path} cannot be written" in caplog.text


def test_the_default_clock_tells_the_time_in_utc(tmp_path):
    log = AdaptationLog(tmp_path / "log", bundle="", runtime="")
    log.write(EVENTS[0])
    [line] = read_log(log.path)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(line.time)).total_seconds()) < 60


def test_a_log_starts_anew_when_it_is_large_and_is_read_as_one(tmp_path):
    log = AdaptationLog(tmp_path / "log", bundle="b", runtime="r", now=lambda: NOON, max_bytes=500, kept=3)
    events = [Opened(subnet=f"o{number}", restored=False) for number in range(20)]
    for event in events:
        log.write(event)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]
    kept = [line.event for line in read_log(log.path)]
    assert 3 < len(kept) < 20
    assert kept == events[-len(kept) :]


def test_a_log_goes_on_after_a_line_that_was_cut_short(tmp_path):
    log = log_at(tmp_path / "log")
    log.write(EVENTS[0])
    log.path.write_bytes(log.path.read_bytes() + b'{"schema":1,"ti')
    log.write(EVENTS[1])
    assert [line.event for line in read_log(log.path)] == EVENTS[:2]
