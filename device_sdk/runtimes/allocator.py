"""Returns freed memory, which the C library would keep, to the system.

A session needs several times the size of its weights during creation and once afterwards. Without this the process
stays at its peak (measured: 3 times the weights of a 40 MB model instead of 1.01).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

WORTHWHILE_BYTES = 256 * 1024  # of weights: smaller blocks are soon reused

_M_ARENA_MAX = -8  # a parameter of mallopt


def give_back_freed_memory() -> None:
    """Return freed memory to the system; usually under a millisecond. A no-op without glibc."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def keep_one_heap() -> None:
    """Have the threads of this process share one heap from now on. It cannot be undone; a no-op without glibc.

    Otherwise each thread keeps what it freed (measured with two threads whose pages are loaded again and again under a
    cap of 5.5 MB: 11.6 MB resident beyond the runtime, with one heap 8.2 MB).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt  # glibc
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_ARENA_MAX, 1)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim  # glibc
    except (AttributeError, OSError, TypeError):
        return None
