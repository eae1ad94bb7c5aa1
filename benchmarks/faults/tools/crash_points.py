"""Kills an operation before each of its changes to the file system, in turn, or after some time.

The operation runs in a forked child. Audit events count files that are opened for writing, renames, deletions and new
folders; a profile function counts writes and fsyncs, in all threads. Nothing is patched.
"""

from __future__ import annotations

import io
import itertools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_EVENTS = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})
_CALLS = frozenset({"write", "flush", "truncate", "fsync", "fdatasync"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
POINTS_MAX = 2000  # an operation with more of them is not one for this tool


@dataclass(frozen=True)
class Crash:
    """The operation was killed before its ``point``-th change, or, the last time, ran to its end."""

    point: int
    killed: bool


def each_crash(begin: Callable[[], Callable[[], object]]) -> Iterator[Crash]:
    """For each point: ``begin`` makes a fresh start and returns the operation; it is killed there; the caller looks.

    Ends after the first run that was not killed.

    Raises:
        AssertionError: the operation raised.
    """
    for point in range(1, POINTS_MAX):
        killed = killed_before(begin(), point)
        yield Crash(point, killed)
        if not killed:
            return
    raise AssertionError(f"the operation makes more than {POINTS_MAX} changes")


def killed_before(operation: Callable[[], object], point: int) -> bool:
    """Run the operation in a forked child that is killed before its ``point``-th change; True if it came so far."""
    child = _start(operation, point)
    _, status = os.waitpid(child, 0)
    return _was_killed(status)


def count_changes(operation: Callable[[], object]) -> int:
    """Number of changes that the operation makes, run to its end in a forked child: its points are 1 to that number."""
    reader, writer = os.pipe()
    child = _start(operation, None, counted=writer)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    assert not _was_killed(status), "the operation was killed"
    return int(said)


def killed_after(operation: Callable[[], object], seconds: float) -> bool:
    """Run the operation in a forked child that is killed after ``seconds``; False if it ended before."""
    child = _start(operation, None)
    ended = threading.Event()

    def kill() -> None:
        if not ended.wait(seconds):
            os.kill(child, signal.SIGKILL)

    timer = threading.Thread(target=kill, daemon=True)
    timer.start()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it stays a zombie, so its id is still its own
    ended.set()
    timer.join()
    _, status = os.waitpid(child, 0)
    return _was_killed(status)


def _start(operation: Callable[[], object], point: int | None, *, counted: int | None = None) -> int:
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run(operation, point, counted)
    return child


def _was_killed(status: int) -> bool:
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"the operation ended with signal {os.WTERMSIG(status)}"
        return True
    assert os.WEXITSTATUS(status) == 0, "the operation raised: see its traceback"
    return False


def _run(operation: Callable[[], object], point: int | None, counted: int | None) -> None:
    try:
        count = itertools.count(1)
        if point is not None or counted is not None:
            _arm(count, point)
        operation()
        sys.setprofile(None)
        if counted is not None:
            threading.setprofile(None)
            os.write(counted, str(next(count) - 1).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _arm(count: Iterator[int], point: int | None) -> None:
    def change() -> None:
        if next(count) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
        if opens or event in _EVENTS:
            change()

    def profile(frame: object, event: str, argument: object) -> None:
        if event != "c_call" or getattr(argument, "__name__", "") not in _CALLS:
            return
        owner = getattr(argument, "__self__", None)
        if (
            owner is os
            or getattr(owner, "__name__", "") == "posix"
            or isinstance(owner, (io.FileIO, io.BufferedWriter))
        ):
            change()

    sys.addaudithook(audit)
    threading.setprofile(profile)
    sys.setprofile(profile)
