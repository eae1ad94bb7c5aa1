"""Memory limits of control groups, of version 2 or 1: of this process's group and those above it."""

from __future__ import annotations

from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.machine import MemoryGroup, memory_groups
from device_sdk.memory_pressure.port import MemoryReading, stalled_share


class CgroupMemory:
    """See the port. The tightest of the limits counts; limits may be set and lifted meanwhile, none is no reading.

    Raises:
        MeasurementError: no control group of this process counts memory.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._groups = memory_groups(root)
        if not self._groups:
            raise MeasurementError("this process is in no control group that counts memory")
        self.name = str(self._groups[0].folder)

    def read(self) -> MemoryReading:
        """See the port."""
        rooms = [room for room in map(_room_bytes, self._groups) if room is not None]
        if not rooms:
            raise MeasurementError("no control group of this process limits memory")
        return MemoryReading(min(rooms), stalled_share(self._groups[0].folder / "memory.pressure"))


def _room_bytes(group: MemoryGroup) -> int | None:
    """The memory that may be taken in this group before the kernel throttles or ends it; None without a limit."""
    limit = group.limit_bytes()
    return None if limit is None else max(0, limit - group.used_bytes())
