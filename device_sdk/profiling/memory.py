"""How much memory a piece of work takes, read from the operating system."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

Result = TypeVar("Result")


def resident_bytes() -> int | None:
    """Bytes of this process in memory now; None where the system does not tell."""
    return _status("VmRSS")


def peak_during(work: Callable[[], Result]) -> tuple[Result, int | None]:
    """Run ``work`` and tell by how many bytes the process grew at its highest; None where unknown (not Linux)."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)
    before = resident_bytes()
    result = work()
    peak = _status("VmHWM")
    return result, None if before is None or peak is None else max(0, peak - before)


def _status(field: str) -> int | None:
    try:
        found = re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def device_identity() -> str:
    """What kind of machine this is: processor, its number of cores, system. Holds no name of a host or a person."""
    model = "unknown processor"
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        model = found[1].strip() if found else model
    return f"{model}, {os.cpu_count()} cores, {os.uname().sysname} {os.uname().machine}"
