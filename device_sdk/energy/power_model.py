"""A stated power instead of a measured one, for devices without a power sensor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from device_sdk.energy.port import Energy
from device_sdk.energy.sampling import Clock
from device_sdk.errors import UsageError


class PowerModel:
    """Assumes ``busy_w`` while work is measured, and ``idle_w`` otherwise (None: unknown).

    Raises:
        UsageError: ``busy_w`` is not above zero, or ``idle_w`` is below zero.
    """

    def __init__(self, *, busy_w: float, idle_w: float | None = None, clock: Clock = time.perf_counter) -> None:
        if not 0 < busy_w < float("inf"):
            raise UsageError(f"the stated power is {busy_w:g} W; it must be above zero")
        if idle_w is not None and not 0 <= idle_w < float("inf"):
            raise UsageError(f"the stated idle power is {idle_w:g} W; it cannot be negative")
        self._busy_w = busy_w
        self._idle_w = idle_w
        self._clock = clock
        self._lock = threading.Lock()
        self._works = 0  # measurements in progress

    @property
    def source(self) -> str:
        """For example ``model: 10 W × busy time``."""
        return f"model: {self._busy_w:g} W × busy time"

    def power_w(self) -> float | None:
        """The stated power: busy during a measurement, else idle."""
        return self._busy_w if self._works else self._idle_w

    def measure(self, work: Callable[[], object]) -> Energy:
        """See the port."""
        self._count(+1)
        started_s = self._clock()
        try:
            work()
        finally:
            seconds = self._clock() - started_s
            self._count(-1)
        return Energy(self._busy_w * seconds * 1e3, seconds, self.source)

    def _count(self, change: int) -> None:
        with self._lock:
            self._works += change
