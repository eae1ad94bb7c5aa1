from __future__ import annotations

import subprocess
import sys

import pytest

from server.jobs.processes import excess_of, memory_of_group, size_of_folder
from server.settings import Settings


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_is_that_of_all_processes_of_a_group():
    held = "import subprocess, sys; data = bytearray(b'x') * 60_000_000; print('held', flush=True); sys.stdin.read()"
    both = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {held!r}])"
    command = [sys.executable, "-c", both]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"held\n"
        assert 60e6 < memory_of_group(process.pid) < 200e6
        process.stdin.close()


def test_a_group_that_has_ended_uses_nothing():
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as process:
        process.wait()
    assert memory_of_group(process.pid) == 0


def test_disk_space_counts_what_is_allocated_in_all_folders(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "large").write_bytes(b"x" * 1_000_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10_000_000_000)
    assert 1_000_000 <= size_of_folder(tmp_path) < 2_000_000


def test_without_limits_nothing_is_too_much(tmp_path):
    limits = Settings(tmp_path, tmp_path, job_minutes=None, job_memory_bytes=None, job_disk_bytes=None)
    assert excess_of(limits, minutes=1e9, group=1, folder=tmp_path) is None
