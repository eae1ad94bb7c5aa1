"""What a worker process is before it becomes the packager: it dies with the server and gives way to it.

Run as a script: ``launch.py SERVER_PID COMMAND…``. It needs nothing but the standard library.
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
_FIRST_TO_GO = "500"  # of 1000: if memory runs out, the kernel ends the worker and not the server


def main(arguments: list[str]) -> None:
    """1. die with the server, 2. unless that is gone already; 3. give way to it; 4. become the command."""
    server, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    if os.getppid() != server:
        sys.exit("the server is gone")
    os.nice(_NICENESS)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
