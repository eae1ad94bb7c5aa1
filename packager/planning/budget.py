"""Time budget and memory limit of a run, and their current use."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from device_sdk.errors import UsageError

_SHARE_OF_MACHINE = 0.5
_WITHOUT_KNOWING = 4_000_000_000  # default where the system does not report its memory
_CGROUP = Path("/sys/fs/cgroup/memory.max")


class Budget:
    """The wall time of a run in ``seconds``, None for no limit; ``spent``: returns the seconds used so far."""

    def __init__(self, seconds: float | None, spent: Callable[[], float]) -> None:
        self.seconds = seconds
        self._spent = spent

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self._spent()

    def left(self, *, after: float = 0.0) -> float:
        """Seconds left, with ``after`` reserved at the end; infinite without a budget, at least 0."""
        return math.inf if self.seconds is None else max(0.0, self.seconds - after - self._spent())


def memory_limit(gigabytes: float | None) -> int:
    """The limit in bytes, by default half of the memory of the machine or container.

    Raises:
        UsageError: it is not a positive number.
    """
    if gigabytes is None:
        return int(_SHARE_OF_MACHINE * machine_memory_bytes())
    if not 0 < gigabytes < math.inf:
        raise UsageError(f"{gigabytes:g} GB is not a limit for memory", hint="give a number above 0")
    return int(gigabytes * 1e9)


def machine_memory_bytes() -> int:
    """The memory of this machine, or the container's limit."""
    found = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        found.append(int(_CGROUP.read_text()))
    return min(found, default=_WITHOUT_KNOWING)


def resident_bytes() -> int:
    """Resident memory of this process; its peak if the system reports only that, 0 if it reports nothing."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return peak_resident_bytes() or 0


def peak_resident_bytes() -> int | None:
    """Peak resident memory of this process; None where the system does not report it."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
