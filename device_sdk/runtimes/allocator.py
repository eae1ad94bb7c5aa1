"""Giving freed memory back to the system, which the C library would rather keep.

A session needs several times its weights while it is created and once afterwards; without this the process stays as
large as it was at its highest (measured: 3 times the weights of a 40 MB model instead of 1.01).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

WORTHWHILE_BYTES = 256 * 1024  # of weights: below, what is freed is soon used again


def give_back_freed_memory() -> None:
    """Return what was freed to the system; under a millisecond as a rule. Does nothing where the C library cannot."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim  # glibc
    except (AttributeError, OSError, TypeError):
        return None
