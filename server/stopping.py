"""Ending a command by a signal."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call ``stop``; a second signal ends the process at once."""
    before: dict[signal.Signals, Any] = {}

    def stopped(*_: object) -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, stopped)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
