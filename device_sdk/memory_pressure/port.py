"""The port to the system's readings of memory. Adapters are in this folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from device_sdk.errors import MeasurementError
from device_sdk.machine import read_text


@dataclass(frozen=True)
class MemoryReading:
    """``available_bytes``: that this process may take in addition; file caches that can be dropped count as free.

    ``stalled_share``: share of the last ten seconds that some task waited for memory, 0 to 1; None where unknown.
    """

    available_bytes: int
    stalled_share: float | None = None


class MemoryPressure(Protocol):
    """One source of readings."""

    @property
    def name(self) -> str:
        """Paths of the files or folders that are read, for the log."""

    def read(self) -> MemoryReading:
        """The memory as it is now; takes well under a millisecond.

        Raises:
            MeasurementError: a file is missing or is not what it should be.
        """


def stalled_share(path: Path) -> float | None:
    """The ``some avg10`` of a file of pressure stall information, as a share; None where there is no such file.

    Raises:
        MeasurementError: the file has something else in it.
    """
    if not path.exists():
        return None
    for line in read_text(path).splitlines():
        kind, *fields = line.split()[:5] or [""]
        if kind == "some" and fields and fields[0].startswith("avg10="):
            try:
                percent = float(fields[0].removeprefix("avg10="))
            except ValueError:
                break
            if 0 <= percent <= 100:
                return percent / 100
    raise MeasurementError(f"{path} has no line of memory pressure")
