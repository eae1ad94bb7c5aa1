"""Energy counters of x86 processors: RAPL, read through the powercap tree of sysfs.

``class/powercap/intel-rapl:0`` is a package with ``name``, ``energy_uj`` and ``max_energy_range_uj``, at which the
counter wraps; ``intel-rapl:0:1`` is a part of it. AMD processors appear there as well. Usually only root may read it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from device_sdk.energy.port import INTERVAL_S, Clock, Energy

_READ_EVERY_S = 10.0  # far below the minutes after which a counter wraps
_MJ_PER_UJ = 1e-3
_OUTSIDE_PACKAGES = "dram"  # the one part that its package does not include


class EnergyCounter(Protocol):
    """A cumulative energy counter that wraps."""

    @property
    def name(self) -> str:
        """The counted component, for display."""

    @property
    def range_uj(self) -> float:
        """The value at which it wraps to 0."""

    def energy_uj(self) -> float | None:
        """The current value; None where it cannot be read."""


@dataclass(frozen=True)
class RaplDomain:
    """One folder of the powercap tree."""

    name: str
    range_uj: float
    path: Path

    def energy_uj(self) -> float | None:
        """See the port."""
        return _number(self.path / "energy_uj")


def find_rapl(sysfs: Path) -> Rapl | None:
    """A meter of the packages and their memory below ``sysfs``; None where there are none or they are not readable."""
    packages: list[RaplDomain] = []
    for folder in sorted((sysfs / "class/powercap").glob("intel-rapl:*")):
        name, range_uj = _text(folder / "name"), _number(folder / "max_energy_range_uj")
        if range_uj and (name.startswith("package") or name == _OUTSIDE_PACKAGES):
            packages.append(RaplDomain(name, range_uj, folder))
    readable = [domain for domain in packages if domain.energy_uj() is not None]
    return Rapl(readable) if any(domain.name.startswith("package") for domain in readable) else None


class Rapl:
    """The sum of several counters: everything that runs on the processor, not one process."""

    def __init__(
        self,
        counters: Sequence[EnergyCounter],
        *,
        clock: Clock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._counters = tuple(counters)
        self._clock = clock
        self._sleep = sleep

    @property
    def source(self) -> str:
        """For example ``RAPL package-0 + dram``."""
        return "RAPL " + " + ".join(counter.name for counter in self._counters)

    def power_w(self) -> float | None:
        """Mean power over the next 20 ms, for which this blocks: counters give energy, not power."""
        return self.measure(lambda: self._sleep(INTERVAL_S)).mean_w

    def measure(self, work: Callable[[], object]) -> Energy:
        """See the port. A thread reads the counters often enough that no wrap is missed."""
        started_s = self._clock()
        sum_ = _Sum(self._counters)
        done = threading.Event()

        def read_until_done() -> None:
            while not done.wait(_READ_EVERY_S):  # ends with the work
                sum_.read()

        reader = threading.Thread(target=read_until_done, name="energy counters", daemon=True)
        reader.start()
        try:
            work()
        finally:
            done.set()
            reader.join()
            seconds = self._clock() - started_s
            sum_.read()
        return Energy(sum_.energy_mj, seconds, self.source)


class _Sum:
    """Accumulates the counters' differences between readings; None for good once a reading fails."""

    def __init__(self, counters: Sequence[EnergyCounter]) -> None:
        self._counters = counters
        self._total_uj: float | None = 0.0
        self._last = [counter.energy_uj() for counter in counters]

    def read(self) -> None:
        now = [counter.energy_uj() for counter in self._counters]
        for counter, before, after in zip(self._counters, self._last, now, strict=True):
            if before is None or after is None or self._total_uj is None:
                self._total_uj = None
                return
            self._total_uj += after - before if after >= before else after - before + counter.range_uj
        self._last = now

    @property
    def energy_mj(self) -> float | None:
        return None if self._total_uj is None else self._total_uj * _MJ_PER_UJ


def _number(path: Path) -> float | None:
    try:
        return float(int(_text(path)))
    except ValueError:
        return None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""
