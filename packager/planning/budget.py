"""How long a run may take and how much memory it may hold, and what of both is used up."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from device_sdk.errors import UsageError

_SHARE_OF_MACHINE = 0.5
_WITHOUT_KNOWING = 4_000_000_000  # where the system does not tell its memory
_CGROUP = Path("/sys/fs/cgroup/memory.max")


class Budget:
    """The wall time of a run in ``seconds``, None without an end; ``spent``: what it has used so far."""

    def __init__(self, seconds: float | None, spent: Callable[[], float]) -> None:
        self.seconds = seconds
        self._spent = spent

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self._spent()

    def left(self, *, after: float = 0.0) -> float:
        """Seconds that are left if the last ``after`` are for something else; infinite without a budget, at least 0."""
        return math.inf if self.seconds is None else max(0.0, self.seconds - after - self._spent())


def memory_limit(gigabytes: float | None) -> int:
    """The limit in bytes: half of this machine's memory, or of the container's, unless it is said.

    Raises:
        UsageError: it is not a positive number.
    """
    if gigabytes is None:
        return int(_SHARE_OF_MACHINE * machine_memory_bytes())
    if not 0 < gigabytes < math.inf:
        raise UsageError(f"{gigabytes:g} GB is not a limit for memory", hint="give a number above 0")
    return int(gigabytes * 1e9)


def machine_memory_bytes() -> int:
    """What the processes here may hold together."""
    found = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        found.append(int(_CGROUP.read_text()))
    return min(found, default=_WITHOUT_KNOWING)


def resident_bytes() -> int:
    """What this process holds now; its peak so far where the system tells no more, 0 where it tells nothing."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return peak_resident_bytes() or 0


def peak_resident_bytes() -> int | None:
    """The highest resident memory of this process; None where the system does not tell."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
