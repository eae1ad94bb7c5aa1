"""Power rails measured on the board: the INA3221 and INA238 sensors of Jetson boards, read through sysfs.

Two drivers, two layouts. JetPack 4 has ``ina3221x``: ``bus/i2c/drivers/ina3221x/7-0040/iio:device0`` with
``rail_name_0`` and ``in_power0_input`` in mW. Newer kernels have hwmon: ``class/hwmon/hwmon3``, whose ``name`` is
ina3221, with ``in1_label``, ``in1_input`` in mV and ``curr1_input`` in mA.

The carrier of AGX Thor has an INA238 as well, which measures what the whole board takes: hwmon with ``power1_input`` in
µW, and no label (jetson_stats, pull request 900). It is named VIN here, as there.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_sdk.energy.port import Energy, measure_by_sampling

# Rails that carry the total power, of the board or of its module; the other rails are parts of them.
TOTALS = ("VIN", "VDD_IN", "POM_5V_IN")

_CHIP, _INPUT_CHIP = "ina3221", "ina238"
_INPUT = "VIN"
_NOT_CONNECTED = "NC"
_WATTS_PER_MW = 1e-3
_WATTS_PER_MV_MA = 1e-6
_WATTS_PER_UW = 1e-6


@dataclass(frozen=True)
class Rail:
    """One measured rail. Its power is the product of the numbers in ``files``, times ``watts_per_unit``."""

    name: str
    files: tuple[Path, ...]
    watts_per_unit: float

    def power_w(self) -> float | None:
        """Its power now; None where it cannot be read."""
        try:
            return math.prod(int(path.read_text()) for path in self.files) * self.watts_per_unit
        except (OSError, ValueError):
            return None


def find_rails(sysfs: Path) -> SysfsRails | None:
    """A meter of the rails below ``sysfs`` that make up the board's power; None where there are none."""
    readable = {
        rail.name: rail
        for rail in (*_iio_rails(sysfs), *_hwmon_rails(sysfs), *_input_rails(sysfs))
        if rail.power_w() is not None
    }
    chosen = board_rails(tuple(readable))
    return SysfsRails([readable[name] for name in chosen]) if chosen else None


def board_rails(names: Sequence[str]) -> tuple[str, ...]:
    """The rails whose sum is the board's power: the total rail if there is one, else all of them.

    AGX boards before Thor have no total rail, and nothing states whether one of their rails supplies another.
    """
    return next(((total,) for total in TOTALS if total in names), tuple(names))


class SysfsRails:
    """The sum of several rails. Their sensors measure everything they supply, not one process."""

    def __init__(self, rails: Sequence[Rail]) -> None:
        self._rails = tuple(rails)

    @property
    def source(self) -> str:
        """For example ``sysfs rails VDD_GPU_SOC + VDD_CPU_CV``."""
        return "sysfs rails " + " + ".join(rail.name for rail in self._rails)

    def power_w(self) -> float | None:
        """The sum of the rails; None if one of them cannot be read."""
        readings = [rail.power_w() for rail in self._rails]
        valid = [watts for watts in readings if watts is not None]
        return sum(valid) if len(valid) == len(readings) else None

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


def _input_rails(sysfs: Path) -> Iterator[Rail]:
    """The board's input, if exactly one sensor can be it; several, or a labelled one, may measure parts."""
    chips = [name.parent for name in sysfs.glob("class/hwmon/hwmon*/name") if _text(name) == _INPUT_CHIP]
    if len(chips) != 1 or _text(chips[0] / "in1_label") not in ("", _INPUT):
        return
    yield Rail(_INPUT, (chips[0] / "power1_input",), _WATTS_PER_UW)


def _named(label: Path, files: Sequence[Path], watts_per_unit: float) -> Iterator[Rail]:
    name = _text(label)
    if name and name != _NOT_CONNECTED:
        yield Rail(name, tuple(files), watts_per_unit)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""
