"""Memory of the whole machine: /proc/meminfo and /proc/pressure/memory (Linux, Android)."""

from __future__ import annotations

from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.memory_pressure.port import MemoryReading, number, read_text, stalled_share


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
        for line in read_text(self._meminfo).splitlines():
            field, _, rest = line.partition(":")
            if field == "MemAvailable":
                kilobytes = number(rest.replace("kB", ""), self._meminfo)
                return MemoryReading(kilobytes * 1024, stalled_share(self._pressure))
        raise MeasurementError(f"{self._meminfo} does not say how much memory is available")
