"""Launcher of worker processes: ends with the server, lowers its priority, then executes the packager.

Run as a script: ``launch.py SERVER_PID COMMAND…``. Uses only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_NICENESS = 10
_PR_SET_PDEATHSIG = 1
_FIRST_TO_GO = "500"  # of 1000: out of memory, the kernel kills the worker, not the server


def main(arguments: list[str]) -> None:
    """1. request a signal when the server ends; 2. exit if it has ended; 3. lower the priority; 4. exec the command."""
    server, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    if os.getppid() != server:
        sys.exit("the server has ended")
    os.nice(_NICENESS)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
