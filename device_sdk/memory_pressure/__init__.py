"""Memory that the system has left for this process. To add a source: a file here, and a line in ``SOURCES``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.memory_pressure.cgroup import CgroupMemory
from device_sdk.memory_pressure.port import MemoryPressure, MemoryReading
from device_sdk.memory_pressure.system import SystemMemory

SOURCES: tuple[Callable[[Path], MemoryPressure], ...] = (CgroupMemory, SystemMemory)


class TightestMemory:
    """Several sources: the least available memory and the longest stall of those that can be read."""

    def __init__(self, sources: Sequence[MemoryPressure]) -> None:
        self._sources = sources
        self.name = ", ".join(source.name for source in sources)

    def read(self) -> MemoryReading:
        """See the port. A source that fails for once is left out; it is an error if all do."""
        readings, failures = [], []
        for source in self._sources:
            try:
                readings.append(source.read())
            except MeasurementError as error:
                failures.append(str(error))
        if not readings:
            raise MeasurementError("; ".join(failures) or "there is no source of memory readings")
        stalls = [one.stalled_share for one in readings if one.stalled_share is not None]
        return MemoryReading(min(one.available_bytes for one in readings), max(stalls, default=None))


def find_memory_pressure(root: Path = Path("/")) -> MemoryPressure:
    """All sources that this system has. ``root``: below which its files are.

    Raises:
        MeasurementError: it has none; says why of each.
    """
    found: list[MemoryPressure] = []
    failures = []
    for source in SOURCES:
        try:
            found.append(source(root))
        except MeasurementError as error:
            failures.append(str(error))
    if not found:
        raise MeasurementError("; ".join(failures))
    return TightestMemory(found)


__all__ = [
    "SOURCES",
    "CgroupMemory",
    "MemoryPressure",
    "MemoryReading",
    "SystemMemory",
    "TightestMemory",
    "find_memory_pressure",
]
