from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.files.rotated_file import append_line, files_of, opened_files

ROOT = Path(__file__).parents[3]


def append_all(path, lines, **limits):
    for line in lines:
        append_line(path, line, **limits)


def read_all(path):
    with opened_files(path) as opened:
        return b"".join(file.read() for _, file in opened).splitlines()


def numbered(count):
    return [b"line %05d" % number for number in range(count)]


def test_lines_come_back_in_order_over_all_files(tmp_path):
    path = tmp_path / "deep" / "log"
    append_all(path, numbered(30), max_bytes=100, kept=9)
    assert read_all(path) == numbered(30)
    assert [one.name for one in files_of(path)] == ["log.3", "log.2", "log.1", "log"]
    assert all(one.stat().st_size <= 100 for one in files_of(path))


def test_only_so_many_old_files_are_kept(tmp_path):
    append_all(tmp_path / "log", numbered(100), max_bytes=100, kept=2)
    assert [one.name for one in files_of(tmp_path / "log")] == ["log.2", "log.1", "log"]
    lines = read_all(tmp_path / "log")
    assert lines == numbered(100)[-len(lines) :]


def test_without_old_files_it_starts_anew(tmp_path):
    append_all(tmp_path / "log", numbered(10), max_bytes=100, kept=0)
    assert files_of(tmp_path / "log") == [tmp_path / "log"]
    assert read_all(tmp_path / "log") == numbered(10)[-1:]


def test_a_line_larger_than_a_file_is_written_all_the_same(tmp_path):
    append_all(tmp_path / "log", [b"x" * 500, b"y" * 500], max_bytes=100, kept=3)
    assert read_all(tmp_path / "log") == [b"x" * 500, b"y" * 500]


def test_a_last_line_that_was_cut_short_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"whole\ntor")
    append_line(path, b"next")
    assert read_all(path) == [b"whole", b"next"]
    path.write_bytes(b"nothing but a torn line")
    append_line(path, b"next")
    assert read_all(path) == [b"next"]


def test_other_files_beside_it_are_not_its_own(tmp_path):
    path = tmp_path / "log"
    for name in ("log.lock", "log.1.bak", "log.x", "logs.1"):
        (tmp_path / name).write_text("other")
    append_line(path, b"mine")
    assert files_of(path) == [path]


def test_what_is_rotated_while_it_is_read_is_neither_missed_nor_seen_twice(tmp_path):
    path = tmp_path / "log"
    append_all(path, numbered(20), max_bytes=100, kept=9)
    with opened_files(path) as opened:
        append_all(path, numbered(40)[20:], max_bytes=100, kept=9)
        lines = b"".join(file.read() for _, file in opened).splitlines()
    assert lines[:20] == numbered(20)
    assert lines == numbered(len(lines))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), opened_files(tmp_path / "log"):
        pass


WRITER = """
import sys
from pathlib import Path
from device_sdk.files.rotated_file import append_line

for number in range(150):
    append_line(Path(sys.argv[1]), f"{sys.argv[2]} {number}".encode(), max_bytes=500, kept=50)
"""


def test_two_processes_that_rotate_one_file_lose_nothing(tmp_path):
    path = tmp_path / "log"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], cwd=ROOT) for name in "ab"]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    lines = read_all(path)
    for name in "ab":
        own = [line for line in lines if line.startswith(name.encode())]
        assert own == [f"{name} {number}".encode() for number in range(150)]
    assert len(lines) == 300
