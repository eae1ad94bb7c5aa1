"""Power rails that the board itself measures: the INA3221 sensors of Jetson boards, read through sysfs.

Two drivers, two layouts. JetPack 4 has ``ina3221x``: ``bus/i2c/drivers/ina3221x/7-0040/iio:device0`` with
``rail_name_0`` and ``in_power0_input`` in mW. Newer kernels have hwmon: ``class/hwmon/hwmon3``, whose ``name`` is
ina3221, with ``in1_label``, ``in1_input`` in mV and ``curr1_input`` in mA.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_sdk.energy.port import Energy
from device_sdk.energy.sampling import measure_by_sampling

# Rails that carry all that a module draws, so that the others are parts of them.
TOTALS = ("VDD_IN", "POM_5V_IN")

_CHIP = "ina3221"
_NOT_CONNECTED = "NC"
_WATTS_PER_MW = 1e-3
_WATTS_PER_MV_MA = 1e-6


@dataclass(frozen=True)
class Rail:
    """One measured rail: the numbers in ``files`` multiplied, times ``watts_per_unit``, are its power."""

    name: str
    files: tuple[Path, ...]
    watts_per_unit: float

    def power_w(self) -> float | None:
        """What it carries now; None where that cannot be read."""
        try:
            return math.prod(int(path.read_text()) for path in self.files) * self.watts_per_unit
        except (OSError, ValueError):
            return None


def find_rails(sysfs: Path) -> SysfsRails | None:
    """The rails below ``sysfs`` that together are the board, as a meter; None where there are none."""
    found = {rail.name: rail for rail in (*_iio_rails(sysfs), *_hwmon_rails(sysfs)) if rail.power_w() is not None}
    chosen = board_rails(tuple(found))
    return SysfsRails([found[name] for name in chosen]) if chosen else None


def board_rails(names: Sequence[str]) -> tuple[str, ...]:
    """Which of the rails stand for the board: the one that carries all where there is one, else all of them.

    The AGX boards have none that carries all, and nothing that says whether one of theirs hangs on another.
    """
    return next(((total,) for total in TOTALS if total in names), tuple(names))


class SysfsRails:
    """What some rails carry together. Their sensors measure all that hangs on them, not one process."""

    def __init__(self, rails: Sequence[Rail]) -> None:
        self._rails = tuple(rails)

    @property
    def source(self) -> str:
        """For example ``sysfs rails VDD_GPU_SOC + VDD_CPU_CV``."""
        return "sysfs rails " + " + ".join(rail.name for rail in self._rails)

    def power_w(self) -> float | None:
        """The sum of the rails; None if one of them cannot be read, never a part of the sum."""
        readings = [rail.power_w() for rail in self._rails]
        known = [watts for watts in readings if watts is not None]
        return sum(known) if len(known) == len(readings) else None

    def measure(self, work: Callable[[], object]) -> Energy:
        """See the port."""
        return measure_by_sampling(self.power_w, work, source=self.source)


def _iio_rails(sysfs: Path) -> Iterator[Rail]:
    for label in sorted(sysfs.glob("bus/i2c/drivers/ina3221x/*/iio:device*/rail_name_*")):
        number = label.name.removeprefix("rail_name_")
        yield from _named(label, [label.with_name(f"in_power{number}_input")], _WATTS_PER_MW)


def _hwmon_rails(sysfs: Path) -> Iterator[Rail]:
    for label in sorted(sysfs.glob("class/hwmon/hwmon*/in*_label")):
        channel = re.fullmatch(r"in([123])_label", label.name)  # further ones are sums of shunt voltages
        if channel is None or _text(label.with_name("name")) != _CHIP:
            continue
        factors = [label.with_name(f"in{channel[1]}_input"), label.with_name(f"curr{channel[1]}_input")]
        yield from _named(label, factors, _WATTS_PER_MV_MA)


def _named(label: Path, files: Sequence[Path], watts_per_unit: float) -> Iterator[Rail]:
    name = _text(label)
    if name and name != _NOT_CONNECTED:
        yield Rail(name, tuple(files), watts_per_unit)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""
