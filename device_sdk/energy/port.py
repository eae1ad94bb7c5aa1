"""The port of energy meters, the model for devices without one, and sampling of power."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from device_sdk.errors import UsageError


@dataclass(frozen=True)
class Energy:
    """Energy of a piece of work over ``seconds``. ``energy_mj`` is None, not zero, where nothing could be read.

    ``source`` states the origin of the figure and whether it was measured; show every figure with it.
    """

    energy_mj: float | None
    seconds: float
    source: str

    @property
    def mean_w(self) -> float | None:
        """Mean power during the work; None where unknown."""
        return None if self.energy_mj is None or not self.seconds > 0 else self.energy_mj / 1e3 / self.seconds


class EnergyMeter(Protocol):
    """Measures this device's power and energy. Read-only and thread-safe."""

    @property
    def source(self) -> str:
        """The origin of its figures, for display: ``sysfs rails VDD_IN``, or ``model: 10 W × busy time``."""

    def power_w(self) -> float | None:
        """The device's power now; None where unknown."""

    def measure(self, work: Callable[[], object]) -> Energy:
        """Run ``work`` and return the device's energy while it ran. Exceptions of ``work`` propagate."""


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


Clock = Callable[[], float]  # seconds

INTERVAL_S = 0.02  # the sensors' conversion takes some milliseconds; reading more often repeats values


def measure_by_sampling(
    power_w: Callable[[], float | None],
    work: Callable[[], object],
    *,
    source: str,
    interval_s: float = INTERVAL_S,
    clock: Clock = time.perf_counter,
) -> Energy:
    """Run ``work``; read power right before and after it, and every ``interval_s`` in a thread while it runs.

    Readings that are None are left out; without any reading the energy is None.
    """
    readings, done = MeanPower(), threading.Event()

    def read() -> None:
        watts = power_w()
        if watts is not None:
            readings.add(clock(), watts)

    def read_until_done() -> None:
        while not done.wait(interval_s):  # ends with the work
            read()

    read()
    sampler = threading.Thread(target=read_until_done, name="power readings", daemon=True)
    sampler.start()
    started_s = clock()
    try:
        work()
    finally:
        seconds = clock() - started_s
        done.set()
        sampler.join()
    read()
    mean_w = readings.mean_w
    return Energy(None if mean_w is None else mean_w * seconds * 1e3, seconds, source)


class MeanPower:
    """Time-weighted mean of sampled power, by linear interpolation."""

    def __init__(self) -> None:
        self._joules = self._seconds = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, at_s: float, watts: float) -> None:
        """Add a reading, not before the last one."""
        if self._last is not None:
            last_s, last_w = self._last
            self._joules += (at_s - last_s) * (watts + last_w) / 2
            self._seconds += at_s - last_s
        self._last = at_s, watts

    @property
    def mean_w(self) -> float | None:
        """The mean so far; None without a reading."""
        if self._last is None:
            return None
        return self._joules / self._seconds if self._seconds > 0 else self._last[1]
