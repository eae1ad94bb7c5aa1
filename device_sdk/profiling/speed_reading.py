"""The system's own words on the speed of its processor: frequencies, heat, throttling, load and power mode."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from device_sdk.errors import MeasurementError
from device_sdk.machine import number, read_text
from device_sdk.machine.clusters import allowed_cores
from device_sdk.profiling.timing import UNKNOWN, power_mode, read_thermal

_ROOT = Path("/")
_CPU = "sys/devices/system/cpu"
_THROTTLES = ("core_throttle_count", "package_throttle_count")  # under thermal_throttle, x86
_PROFILE = "sys/firmware/acpi/platform_profile"
_SAVING = "low-power"  # a platform profile of laptops
_BUSY, _IDLE = (0, 1, 2, 5, 6, 7), (3, 4)  # columns of /proc/stat; 7: taken by other virtual machines
_OWN = (11, 12)  # columns of /proc/self/stat behind the name: in user mode, in the kernel
_MOST_TASKS = 64
_MOST_CORES = 16  # some kernels take 10 ms to tell the frequency of an idle core; cores of larger machines are alike
_TRIPS = ("passive", "hot")  # kinds of trip points from which on the system slows the processor down


class SpeedReading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the system; None or nothing for what it does not tell.

    ``frequency_mhz``: of the fastest core now; ``limit_share``: the highest frequency that the system allows now, of
    the hardware's, where it is lowest. ``throttles``: how often the processor throttled itself so far. ``held_back``:
    cooling devices that limit a processor. ``busy_ticks`` of ``total_ticks``: of all ``cores``, ``own_ticks`` of them
    by this process. ``run_ns``, ``waited_ns``: this process's threads ran, or waited for a core. ``saving``: a battery
    saver is on; ``thermal_status``: Android's, 0 (none) to 6 (shutdown).
    """

    frequency_mhz: float | None = None
    limit_share: float | None = None
    throttles: int | None = None
    hottest_c: float | None = None
    held_back: tuple[str, ...] = ()
    busy_ticks: int | None = None
    total_ticks: int | None = None
    own_ticks: int | None = None
    cores: int = 1
    run_ns: int | None = None
    waited_ns: int | None = None
    power_mode: str = UNKNOWN
    saving: bool = False
    thermal_status: int | None = None


class SpeedSignals(Protocol):
    """The port to the system: a reading takes about a millisecond, and never fails."""

    def read(self) -> SpeedReading:
        """The reading now."""


class SystemSpeed:
    """Reads Linux's files below ``system``; of the first 16 ``cores``, by default those that this process may use."""

    def __init__(self, system: Path = _ROOT, *, cores: Collection[int] | None = None) -> None:
        self._system = system
        self._cores = (allowed_cores() if cores is None else tuple(sorted(cores)))[:_MOST_CORES]

    def read(self) -> SpeedReading:
        """See the port."""
        thermal = read_thermal(self._system)
        frequencies = [value / 1e3 for value in self._of_cores("cpufreq/scaling_cur_freq")]
        throttles = [value for name in _THROTTLES for value in self._of_cores(f"thermal_throttle/{name}")]
        busy, total, cores = _ticks(self._system / "proc/stat")
        run_ns, waited_ns = _waits(self._system / "proc/self/task")
        return SpeedReading(
            frequency_mhz=max(frequencies, default=None),
            limit_share=min(self._limits(), default=None),
            throttles=sum(throttles) if throttles else None,
            hottest_c=thermal.hottest_c,
            held_back=thermal.held_back,
            busy_ticks=busy,
            total_ticks=total,
            own_ticks=_own_ticks(self._system / "proc/self/stat"),
            cores=cores,
            run_ns=run_ns,
            waited_ns=waited_ns,
            power_mode=power_mode(self._system),
            saving=_text(self._system / _PROFILE).strip() == _SAVING,
        )

    def _of_cores(self, name: str) -> Iterator[int]:
        for core in self._cores:
            value = _whole(self._system / _CPU / f"cpu{core}" / name)
            if value is not None:
                yield value

    def _limits(self) -> Iterator[float]:
        for core in self._cores:
            folder = self._system / _CPU / f"cpu{core}" / "cpufreq"
            allowed, most = _whole(folder / "scaling_max_freq"), _whole(folder / "cpuinfo_max_freq")
            if allowed and most:
                yield allowed / most


class Zone(msgspec.Struct, frozen=True):
    """A thermal zone: its name, its temperature, and the one from which on the system slows the processor down."""

    name: str
    temperature_c: float
    trip_c: float | None = None


def thermal_zones(system: Path = _ROOT) -> tuple[Zone, ...]:
    """The thermal zones that have a temperature, the hottest first."""
    found = []
    for folder in sorted((system / "sys/class/thermal").glob("thermal_zone*")):
        temperature = _whole(folder / "temp")
        if temperature is not None:
            trips = [value / 1e3 for value in _trips(folder) if value > 0]
            found.append(
                Zone(_text(folder / "type").strip() or folder.name, temperature / 1e3, min(trips, default=None))
            )
    return tuple(sorted(found, key=lambda zone: -zone.temperature_c))


def _trips(folder: Path) -> Iterator[int]:
    for kind in sorted(folder.glob("trip_point_*_type")):
        if _text(kind).strip() in _TRIPS:
            value = _whole(folder / kind.name.replace("_type", "_temp"))
            if value is not None:
                yield value


def _ticks(path: Path) -> tuple[int | None, int | None, int]:
    """Busy and all ticks of all cores so far, and the number of cores."""
    lines = _text(path).splitlines()
    cores = sum(1 for line in lines if line[:3] == "cpu" and line[3:4].isdigit())
    with contextlib.suppress(ValueError, IndexError):
        columns = [int(value) for value in lines[0].split()[1:9]]
        busy = sum(columns[at] for at in _BUSY)
        return busy, busy + sum(columns[at] for at in _IDLE), max(cores, 1)
    return None, None, max(cores, 1)


def _own_ticks(path: Path) -> int | None:
    with contextlib.suppress(ValueError, IndexError):
        columns = _text(path).rpartition(")")[2].split()
        return sum(int(columns[at]) for at in _OWN)
    return None


def _waits(tasks: Path) -> tuple[int | None, int | None]:
    """Nanoseconds that the threads of this process have run, and that they have waited for a core."""
    ran, waited = [], []
    with contextlib.suppress(OSError):
        for folder in sorted(tasks.iterdir())[:_MOST_TASKS]:
            with contextlib.suppress(ValueError, IndexError):
                columns = _text(folder / "schedstat").split()
                run_ns, waited_ns = int(columns[0]), int(columns[1])
                ran.append(run_ns)
                waited.append(waited_ns)
    return (sum(ran), sum(waited)) if ran else (None, None)


def _whole(path: Path) -> int | None:
    with contextlib.suppress(MeasurementError):
        return number(read_text(path), path)
    return None


def _text(path: Path) -> str:
    with contextlib.suppress(MeasurementError):
        return read_text(path)
    return ""
