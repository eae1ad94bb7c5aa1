"""Limits of a packaging job: wall time, memory of all its processes, and disk space of its folder."""

from __future__ import annotations

import os
from pathlib import Path

from server.jobs.worker import Failure
from server.settings import Settings

_PROC = Path("/proc")
_MEMORY_FIELDS = ("RssAnon:", "RssShmem:", "VmSwap:")  # file pages can be dropped by the kernel


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
