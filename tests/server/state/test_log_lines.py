from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import MalformedError, UnprocessableError
from server.state.log_store import check_device, check_lines


def check(body, max_line_bytes=64_000):
    return check_lines(body, max_line_bytes=max_line_bytes)


def test_lines_that_keep_the_schema(log_line, ndjson):
    body = ndjson(log_line(1), log_line(2, "adapted"))
    first, second = check(body)
    assert (first.event, second.event) == ("opened", "adapted")
    assert first.digest == hashlib.sha256(body.split(b"\n")[0]).digest()
    assert check(body.rstrip(b"\n")) == [first, second]
    assert check(b"") == []


def test_times_are_compared_in_utc(log_line, ndjson):
    line = {**log_line(), "time": "2026-05-01T14:00:00+02:00"}
    assert check(ndjson(line))[0].time == "2026-05-01T12:00:00.000+00:00"
    assert check(ndjson({**line, "time": "2026-05-01T12:00:00"}))[0].time == "2026-05-01T12:00:00.000+00:00"


def test_fields_that_nobody_knows_are_not_kept(log_line, ndjson):
    [line] = check(ndjson({**log_line(), "password": "secret"}))
    assert b"secret" not in line.encoded()
    assert json.loads(line.encoded())["event"]["event"] == "opened"


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "1"},
        {"schema": 2},
        {"time": "yesterday"},
        {"time": 3},
        {"time": "0001-01-01T00:00:00+23:00"},
        {"event": {"event": "exploded"}},
        {"event": {"event": "opened", "subnet": 3, "restored": False}},
        {"event": "opened"},
        {"bundle": None},
    ],
)
def test_a_line_that_breaks_the_schema_is_named(log_line, ndjson, change):
    with pytest.raises(UnprocessableError, match=r"^line 2: "):
        check(ndjson(log_line(), {**log_line(), **change}, log_line()))


@pytest.mark.parametrize(
    "line", [b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 50_000, b'{"schema": 1e999}', b"{} {}"]
)
def test_what_is_no_line_is_refused(log_line, ndjson, line):
    with pytest.raises(UnprocessableError, match=r"^line 2: "):
        check(ndjson(log_line()) + line + b"\n" + ndjson(log_line()))


def test_a_long_line_is_refused(log_line, ndjson):
    line = log_line(subnet="o" * 1000)
    length = len(ndjson(line)) - 1
    assert len(check(ndjson(line), max_line_bytes=length)) == 1
    with pytest.raises(UnprocessableError, match=f"line 1: it has {length} bytes"):
        check(ndjson(line), max_line_bytes=length - 1)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_in_one_way(data):
    if data.strip(b"\n"):
        with pytest.raises(UnprocessableError):
            check(data)


@pytest.mark.parametrize("name", ["a", "x" * 128, "Pi-4_kitchen.2"])
def test_names_of_devices(name):
    assert check_device(name) == name


@pytest.mark.parametrize("name", [None, "", "x" * 129, "a b", "<script>", "a/b", "ü", "a\n"])
def test_what_no_device_is_called(name):
    with pytest.raises(MalformedError):
        check_device(name)
