"""How much memory a piece of work takes, read from the operating system.

What was freed before would hide what is taken now (measured: a subnet that needs 19 MB shows 3 MB), so it goes back to
the system first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from device_sdk.profiling.conditions import device_identity as device_identity  # its old address
from device_sdk.runtimes.allocator import give_back_freed_memory

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

Result = TypeVar("Result")


def resident_bytes() -> int | None:
    """Bytes of this process in memory now; None where the system does not tell."""
    return _status("VmRSS")


def peak_during(work: Callable[[], Result]) -> tuple[Result, int | None]:
    """Run ``work`` and tell by how many bytes the process grew at its highest; None where unknown (not Linux).

    What other threads take meanwhile counts as well. The system counts in steps of some 100 kB.
    """
    give_back_freed_memory()
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
