"""Temperature of a device and its throttling by the kernel, as Linux states them below ``/sys/class/thermal``.

Temperatures come from ``thermal_zone*`` in thousandths of a degree. A processor is held back while one of its cooling
devices (``cpufreq-cpu0``, ``devfreq-17000000.gpu``, ``cpu-hot``) is in a state above 0. A turning fan holds nothing
back.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_CLASS = "sys/class/thermal"
_FAN = re.compile(r"fan", re.IGNORECASE)
_RANGE_C = (-40.0, 150.0)  # sensors of switched-off parts state values far outside


@dataclass(frozen=True)
class Thermal:
    """``hottest_c``: of all zones, None without a sensor; ``held_back``: the cooling devices that limit a processor."""

    hottest_c: float | None
    held_back: tuple[str, ...]


def read_thermal(root: Path = _ROOT) -> Thermal:
    """The state now, read below ``root``."""
    temperatures_c = [value for value in _temperatures_c(root) if _RANGE_C[0] < value < _RANGE_C[1]]
    return Thermal(max(temperatures_c, default=None), tuple(sorted(set(_limiting(root)))))


def _temperatures_c(root: Path) -> Iterator[float]:
    for zone in (root / _CLASS).glob("thermal_zone*"):
        value = _number(zone / "temp")
        if value is not None:
            yield value / 1000


def _limiting(root: Path) -> Iterator[str]:
    for device in (root / _CLASS).glob("cooling_device*"):
        state = _number(device / "cur_state")
        kind = _text(device / "type")
        if state and not _FAN.search(kind):
            yield kind or device.name


def _number(path: Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(_text(path))
    return None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""
