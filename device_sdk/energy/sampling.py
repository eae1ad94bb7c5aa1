"""Energy by sampling power, for meters without an energy counter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from device_sdk.energy.port import Energy

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
