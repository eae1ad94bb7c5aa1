"""An operation in a forked child: joined, or killed."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable


class Forked:
    """Runs ``operation`` in a forked child from now on. A context manager: on exit the child is killed."""

    def __init__(self, operation: Callable[[], object]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self._status: int | None = None
        if self.pid == 0:
            _run(operation)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def join(self, seconds: float) -> int | None:
        """Wait: 0 if the operation returned, 1 if it raised, -N for signal N; None, and a kill, if it does not end."""
        ends_s = time.monotonic() + seconds
        while self._status is None and time.monotonic() < ends_s:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.005)
        if self._status is None:
            self.kill()
            return None
        return self._status

    def kill(self) -> None:
        """End it now. Idempotent."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _run(operation: Callable[[], object]) -> None:
    try:
        operation()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
