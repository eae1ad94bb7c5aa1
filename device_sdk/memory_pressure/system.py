"""Memory of the whole machine: /proc/meminfo and /proc/pressure/memory (Linux, Android)."""

from __future__ import annotations

from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.machine import field
from device_sdk.memory_pressure.port import MemoryReading, stalled_share


class SystemMemory:
    """See the port. ``root``: below which the system's files are.

    Raises:
        MeasurementError: /proc/meminfo is missing or odd.
    """

    name = "/proc/meminfo"

    def __init__(self, root: Path = Path("/")) -> None:
        self._meminfo = root / "proc/meminfo"
        self._pressure = root / "proc/pressure/memory"
        self.read()

    def read(self) -> MemoryReading:
        """See the port."""
        available = field(self._meminfo, "MemAvailable")
        if available is None:
            raise MeasurementError(f"{self._meminfo} does not say how much memory is available")
        return MemoryReading(available, stalled_share(self._pressure))
