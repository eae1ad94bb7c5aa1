from __future__ import annotations

import os
import time

import pytest

from benchmarks.faults.tools.crash_points import count_changes, each_crash, killed_after, killed_before
from device_sdk.files.atomic import write_atomically

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def states(path, write):
    """What the file holds after a kill at each point of ``write``."""

    def begin():
        path.write_bytes(b"old")
        return write

    return [path.read_bytes() for _ in each_crash(begin)]


def test_a_file_that_is_written_in_place_is_found_torn(tmp_path):
    path = tmp_path / "file"
    assert b"" in states(path, lambda: path.write_bytes(b"new"))


def test_a_file_that_is_renamed_into_place_never_is(tmp_path):
    path = tmp_path / "file"
    found = states(path, lambda: write_atomically(path, b"new"))
    assert found == sorted(found, reverse=True)
    assert set(found) == {b"old", b"new"}


def test_an_operation_that_raises_is_no_crash(tmp_path):
    with pytest.raises(AssertionError, match="raised"):
        list(each_crash(lambda: lambda: 1 / 0))


def test_a_kill_after_some_time_says_whether_it_came_in_time(tmp_path):
    assert killed_after(lambda: time.sleep(30), 0.05)
    assert not killed_after(lambda: None, 20.0)


def test_changes_are_counted_as_points(tmp_path):
    path = tmp_path / "file"
    count = count_changes(lambda: write_atomically(path, b"new"))
    assert path.read_bytes() == b"new"
    assert count == len(states(path, lambda: write_atomically(path, b"new"))) - 1
    assert killed_before(lambda: write_atomically(path, b"new"), count)
    assert not killed_before(lambda: write_atomically(path, b"new"), count + 1)
