"""Service times and pace of the last calls of the plan in use."""

from __future__ import annotations

import threading
from collections import deque
from itertools import pairwise
from statistics import median

KEPT = 256  # calls
_PACE_CALLS, _LEAST_PACE_CALLS = 33, 9


class ServiceTimes:
    """Records the times of calls, from any thread, and sets ``wake`` when one is out of bounds.

    This runs in every call: it compares and appends, nothing else.
    """

    __slots__ = ("_calls_ms", "_high_ms", "_low_ms", "_wake")

    def __init__(self, wake: threading.Event, *, low_ms: float, high_ms: float) -> None:
        self._calls_ms: deque[float] = deque(maxlen=KEPT)
        self._wake = wake
        self._low_ms, self._high_ms = low_ms, high_ms

    def record(self, service_ms: float) -> None:
        """Record the time of a call with one sample that the subnet answered."""
        self._calls_ms.append(service_ms)
        if not self._low_ms <= service_ms <= self._high_ms:
            self._wake.set()

    def last(self) -> list[float]:
        """The last calls, the oldest first, milliseconds."""
        return list(self._calls_ms.copy())


class CallPace:
    """The pace of the last calls, from any thread: this runs in every call and only appends."""

    __slots__ = ("_starts_s",)

    def __init__(self) -> None:
        self._starts_s: deque[float] = deque(maxlen=_PACE_CALLS)

    def note(self, start_s: float) -> None:
        """Record that a call began at ``start_s`` of a monotonic clock."""
        self._starts_s.append(start_s)

    def calls_per_second(self) -> float | None:
        """One over the median interval of the last calls; None after fewer than nine."""
        starts_s = list(self._starts_s.copy())
        if len(starts_s) < _LEAST_PACE_CALLS:
            return None
        interval_s = median(after - before for before, after in pairwise(starts_s))
        return 1.0 / interval_s if interval_s > 0 else None
