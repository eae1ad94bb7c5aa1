"""Limits of a packaging job: wall time, memory of all its processes, and disk space of its folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from server.jobs.worker import Failure

_PROC = Path("/proc")
_MEMORY_FIELDS = ("RssAnon:", "RssShmem:", "VmSwap:")  # file pages can be dropped by the kernel


@dataclass(frozen=True)
class JobLimits:
    """Maximum of each, per job. None: no limit; memory is watched on Linux only.

    The memory of processes counts, not their address space: torch reserves far more than it uses.
    """

    minutes: float | None = 720.0
    memory_bytes: int | None = None
    disk_bytes: int | None = 20_000_000_000

    def exceeded(self, *, minutes: float, group: int, folder: Path) -> Failure | None:
        """Failure of a job that exceeds a limit, else None. ``group``: of its processes; ``folder``: of its files."""
        if self.minutes is not None and minutes > self.minutes:
            return _failure(f"took more than {self.minutes:g} minutes", "--job-minutes", "fewer minutes or steps")
        if self.memory_bytes is not None and memory_of_group(group) > self.memory_bytes:
            return _failure(f"took more than {_gb(self.memory_bytes)} of memory", "--job-memory-gb", "a smaller batch")
        if self.disk_bytes is not None and size_of_folder(folder) > self.disk_bytes:
            return _failure(f"took more than {_gb(self.disk_bytes)} of disk space", "--job-disk-gb", "fewer renditions")
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


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:g} GB"
