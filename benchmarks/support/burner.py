"""Processes that keep cores busy beside a measurement."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

BURN = "while True: pass"
_PINNED = "import os; os.sched_setaffinity(0, {{{core}}})\n" + BURN


@contextlib.contextmanager
def burning() -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes its share of the core that this process is pinned to, while it is let.

    It is stopped at first: send it SIGCONT and SIGSTOP.
    """
    with subprocess.Popen([sys.executable, "-c", BURN]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def every_core_burning() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A busy process on each core that this process may use, until the context is left."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    programs = [_PINNED.format(core=core) for core in cores] or [BURN] * (os.cpu_count() or 1)
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for program in programs:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", program]))
            stack.callback(process.kill)
            processes.append(process)
        yield processes


@contextlib.contextmanager
def one_core_burning() -> Iterator[subprocess.Popen[bytes]]:
    """A busy process on the last core that this process may use, until the context is left."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    program = _PINNED.format(core=cores[-1]) if cores else BURN
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            yield process
        finally:
            process.kill()
