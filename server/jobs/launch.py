"""Launcher of worker processes: ends with the server, lowers its priority, then executes the packager.

Run as a script: ``launch.py SERVER_PID USER_ID GROUP_ID COMMAND…``; as the server's own user with ``- -``. Uses only
the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

OWN_USER = "-"
_NICENESS = 10
_PR_SET_PDEATHSIG = 1
_FIRST_TO_GO = "500"  # of 1000: out of memory, the kernel kills the worker, not the server


def main(arguments: list[str]) -> None:
    """1. lower the priority; 2. become the user; 3. request a signal when the server ends, which a change of the user
    would undo; 4. exit if it has ended; 5. exec the command."""
    server, user, group, command = int(arguments[0]), arguments[1], arguments[2], arguments[3:]
    os.nice(_NICENESS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    if user != OWN_USER:
        os.setgroups([])
        os.setgid(int(group))
        os.setuid(int(user))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        sys.exit("the server has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
