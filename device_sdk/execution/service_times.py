"""How long the last calls of the plan in use took."""

from __future__ import annotations

import threading
from collections import deque

KEPT = 256  # calls


class ServiceTimes:
    """Takes note of calls, from any thread, and wakes whoever judges them when one is out of bounds.

    This runs in every call: it compares and appends, nothing else.
    """

    __slots__ = ("_calls_ms", "_high_ms", "_low_ms", "_wake")

    def __init__(self, wake: threading.Event, *, low_ms: float, high_ms: float) -> None:
        self._calls_ms: deque[float] = deque(maxlen=KEPT)
        self._wake = wake
        self._low_ms, self._high_ms = low_ms, high_ms

    def record(self, service_ms: float) -> None:
        """A call of one sample that the subnet answered took so long."""
        self._calls_ms.append(service_ms)
        if not self._low_ms <= service_ms <= self._high_ms:
            self._wake.set()

    def last(self) -> list[float]:
        """The last calls, the oldest first, milliseconds."""
        return list(self._calls_ms.copy())
