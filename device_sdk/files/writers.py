"""Names of temporary files that tell whether their writer still runs."""

from __future__ import annotations

import itertools
import os
import secrets

_RUN = secrets.token_hex(8)  # identifies this process run: process ids are recycled
_numbers = itertools.count()


def own_suffix() -> str:
    """``<process id>.<unique>``: part of the name of a file that this process writes."""
    return f"{os.getpid()}.{unique()}"


def unique() -> str:
    """Hexadecimal digits, unique in this run and different in every other."""
    return f"{_RUN}{next(_numbers):x}"


def in_use(process: int, unique: str) -> bool:
    """True if the writer ``process``, which chose ``unique``, may still run. Process 0 stands for none."""
    if process == 0:
        return False
    if process == os.getpid():
        return unique.startswith(_RUN)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
