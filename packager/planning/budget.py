"""Time budget and memory limit of a run, and their current use."""

from __future__ import annotations

import math
from collections.abc import Callable

from device_sdk.errors import UsageError
from device_sdk.machine import memory_bytes, peak_resident_bytes, resident_bytes

_SHARE_OF_MACHINE = 0.5
_WITHOUT_KNOWING = 4_000_000_000  # default where the system does not report its memory


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
        return int(_SHARE_OF_MACHINE * (memory_bytes() or _WITHOUT_KNOWING))
    if not 0 < gigabytes < math.inf:
        raise UsageError(f"{gigabytes:g} GB is not a limit for memory", hint="give a number above 0")
    return int(gigabytes * 1e9)


def memory_in_use() -> int:
    """Resident memory of this process; its peak if the system reports only that, 0 if it reports nothing."""
    return resident_bytes() or peak_resident_bytes() or 0
