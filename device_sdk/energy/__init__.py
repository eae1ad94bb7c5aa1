"""Energy meters behind one port. To add one: a file here, a line in ``FINDERS``, the conformance tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from device_sdk.energy.port import Energy, EnergyMeter, PowerModel
from device_sdk.energy.rapl import Rapl, find_rapl
from device_sdk.energy.sysfs_rails import SysfsRails, find_rails

# In order of preference. Each searches below the sysfs root.
FINDERS: dict[str, Callable[[Path], EnergyMeter | None]] = {
    "sysfs rails": find_rails,
    "RAPL": find_rapl,
}


def find_meter(*, stated_w: float, sysfs: Path = Path("/sys")) -> EnergyMeter:
    """The best energy meter of this device; without any sensor, a model of ``stated_w`` watts while busy.

    Its ``source`` states which.

    Raises:
        UsageError: ``stated_w`` is not above zero.
    """
    model = PowerModel(busy_w=stated_w)
    return next((meter for find in FINDERS.values() if (meter := find(sysfs)) is not None), model)


__all__ = [
    "FINDERS",
    "Energy",
    "EnergyMeter",
    "PowerModel",
    "Rapl",
    "SysfsRails",
    "find_meter",
    "find_rails",
    "find_rapl",
]
