"""Peak memory of a piece of work, read from the operating system.

Memory freed earlier would be reused and hide the peak (measured: a subnet that needs 19 MB shows 3 MB), so it is
returned to the system first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from device_sdk.machine import peak_resident_bytes, resident_bytes
from device_sdk.profiling.conditions import device_identity as device_identity  # its old address
from device_sdk.runtimes.allocator import give_back_freed_memory

_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

Result = TypeVar("Result")


def peak_during(work: Callable[[], Result]) -> tuple[Result, int | None]:
    """Run ``work``; returns its result and the growth of the process at its peak, in bytes (None: not Linux).

    Memory of other threads counts as well. The system's resolution is some 100 kB.
    """
    give_back_freed_memory()
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)
    before = resident_bytes()
    result = work()
    peak = peak_resident_bytes()
    return result, None if before is None or peak is None else max(0, peak - before)
