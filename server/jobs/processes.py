"""Worker processes, which may outlive a killed server: identification despite pid reuse, termination, and limits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from server.jobs.worker import Failure
from server.settings import Settings

_PROC = Path("/proc")
_MEMORY_FIELDS = ("RssAnon:", "RssShmem:", "VmSwap:")  # file pages can be dropped by the kernel
_WAIT_S = 10.0
_POLL_S = 0.02
_PS_TIMEOUT_S = 5.0


def mark_of(pid: int) -> str | None:
    """The pid and start time of a process, since pids are reused; None if it does not exist or is a zombie."""
    began = _began_in_proc(pid) if (_PROC / "self" / "stat").exists() else _began_by_ps(pid)
    return None if began is None else f"{pid} {began}"


def end_group(pid: int) -> None:
    """Kill the process group of ``pid``. The packager can resume from its last saved state afterwards."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended; macOS raises the latter for zombies
        os.killpg(pid, signal.SIGKILL)


def end_orphan(mark: str) -> bool:
    """Kill a process group of an earlier server, by its leader's mark; False if it does not end in time."""
    pid, deadline = int(mark.partition(" ")[0]), time.monotonic() + _WAIT_S
    while mark_of(pid) == mark:
        if time.monotonic() > deadline:
            return False
        end_group(pid)
        time.sleep(_POLL_S)
    return True


def _began_in_proc(pid: int) -> str | None:
    """Linux: boot id and start time in clock ticks."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may contain any character: split after the last one.
    fields = text.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{boot}/{ticks}"


def _began_by_ps(pid: int) -> str | None:
    """Other systems: start time, to the second."""
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    try:
        fields = subprocess.run(command, capture_output=True, text=True, timeout=_PS_TIMEOUT_S).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if not fields or fields[0].startswith("Z") else " ".join(fields[1:])


def excess_of(limits: Settings, *, minutes: float, group: int, folder: Path) -> Failure | None:
    """Failure of a job that exceeds a limit, else None. ``group``: of its processes; ``folder``: of its files.

    The memory of processes counts, not their address space: torch reserves far more than it uses. Linux only.
    """
    if limits.job_minutes is not None and minutes > limits.job_minutes:
        return _failure(f"took more than {limits.job_minutes:g} minutes", "--job-minutes", "fewer minutes or steps")
    memory, disk = limits.job_memory_bytes, limits.job_disk_bytes
    if memory is not None and memory_of_group(group) > memory:
        return _failure(f"took more than {memory / 1e9:g} GB of memory", "--job-memory-gb", "a smaller batch")
    if disk is not None and size_of_folder(folder) > disk:
        return _failure(f"took more than {disk / 1e9:g} GB of disk space", "--job-disk-gb", "fewer renditions")
    return None


def memory_of_group(group: int) -> int:
    """Bytes of memory and swap that the processes of a process group use; 0 where ``/proc`` is missing."""
    total = 0
    for folder in _PROC.glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                total += _memory_bytes((folder / "status").read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError):  # it has ended
            continue
    return total


def size_of_folder(folder: Path) -> int:
    """Bytes on disk of all files in a folder. Files that disappear during the walk do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _memory_bytes(status: str) -> int:
    lines = (line.split() for line in status.splitlines() if line.startswith(_MEMORY_FIELDS))
    return sum(int(fields[1]) * 1024 for fields in lines)


def _failure(what: str, option: str, less: str) -> Failure:
    return Failure(
        f"the job {what} and was stopped", f"request {less}, or have the server started with a higher {option}"
    )
