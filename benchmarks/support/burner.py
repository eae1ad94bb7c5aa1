"""A process that takes its share of the core that this process is pinned to, while it is let."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

BURN = "while True: pass"


@contextlib.contextmanager
def burning() -> Iterator[subprocess.Popen[bytes]]:
    """It is stopped at first: send it SIGCONT and SIGSTOP."""
    with subprocess.Popen([sys.executable, "-c", BURN]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()
