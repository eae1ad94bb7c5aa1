"""Worker processes that may outlive a killed server: identification despite pid reuse, and termination."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

_PROC = Path("/proc")
_WAIT_S = 10.0
_POLL_S = 0.02
_PS_TIMEOUT_S = 5.0


def mark_of(pid: int) -> str | None:
    """The pid and start time of a process, since pids are reused; None if it does not exist or is a zombie."""
    began = _began_in_proc(pid) if (_PROC / "self" / "stat").exists() else _began_by_ps(pid)
    return None if began is None else f"{pid} {began}"


def end_group(pid: int) -> None:
    """Kill the process group of ``pid``. The packager can resume from its last saved state afterwards."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has ended; macOS raises the latter for zombies
        return


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
