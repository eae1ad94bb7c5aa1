from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from server.jobs import launch
from server.jobs.processes import _began_by_ps, end_group, end_orphan, mark_of

WAIT = "import time; time.sleep(60)"
WITH_CHILD = (
    f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {WAIT!r}]); print(c.pid, flush=True); {WAIT}"
)


@contextmanager
def leader(program=WAIT):
    """A process that leads a group of its own, and what it printed first."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        end_group(process.pid)
        process.wait()
        process.stdout.close()


def gone(pid):
    return mark_of(pid) is None


def test_a_mark_is_the_same_as_long_as_the_process_is_there():
    with leader() as process:
        mark = mark_of(process.pid)
        assert mark is not None
        assert mark == mark_of(process.pid)
        assert mark != mark_of(os.getpid())
    assert mark_of(process.pid) is None


def test_remains_that_nobody_has_collected_count_as_gone(eventually):
    with leader() as process:
        process.kill()
        eventually(lambda: gone(process.pid))
        os.kill(process.pid, 0)  # its number is still taken


def test_an_orphan_ends_with_all_that_it_started(eventually):
    with leader(WITH_CHILD) as process:
        child = int(process.stdout.readline())
        assert end_orphan(mark_of(process.pid))
        assert process.wait(10) == -signal.SIGKILL
        eventually(lambda: gone(child))


def test_another_process_with_its_number_is_left_alone():
    with leader() as process:
        assert end_orphan(f"{process.pid} another boot/17")
        assert process.poll() is None


def test_one_that_has_ended_long_ago_is_no_trouble():
    with leader() as process:
        mark = mark_of(process.pid)
    assert end_orphan(mark)


def test_the_beginning_as_ps_tells_it():
    if _began_by_ps(os.getpid()) is None:
        pytest.skip("needs ps")
    assert _began_by_ps(os.getpid()) == _began_by_ps(os.getpid())
    assert _began_by_ps(2**22 + 1) is None


# launch


SERVER = f"""
import os, subprocess, sys
command = [sys.executable, "-I", {launch.__file__!r}, sys.argv[1] if len(sys.argv) > 1 else str(os.getpid())]
worker = subprocess.Popen([*command, "-", "-", sys.executable, "-c", {WAIT!r}], start_new_session=True)
print(worker.pid, flush=True)
sys.exit(worker.wait())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_a_worker_dies_with_its_server(eventually):
    with leader(SERVER) as server:
        worker = int(server.stdout.readline())
        eventually(lambda: os.getpriority(os.PRIO_PROCESS, worker) > 0)  # launched
        assert not gone(worker)
        server.kill()
        eventually(lambda: gone(worker))


def test_a_worker_gives_way_to_its_server():
    shown = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
    command = [sys.executable, "-I", launch.__file__, str(os.getpid()), "-", "-", sys.executable, "-c", shown]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)


def test_a_worker_whose_server_is_gone_does_not_begin():
    command = [
        sys.executable,
        "-I",
        launch.__file__,
        "1" if os.getpid() != 1 else "2",
        "-",
        "-",
        sys.executable,
        "-c",
        "print(7)",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the server has ended" in done.stderr
