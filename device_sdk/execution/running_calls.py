"""Counts the calls that use something, to free it once the last of them has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from device_sdk.execution.memory_cap import PlanRetired


class RunningCalls:
    """``with calls:`` around each call. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._running = 0
        self._last: Callable[[], None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._last is not None:
                raise PlanRetired
            self._running += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._running -= 1
            last = self._last if not self._running else None
        if last is not None:
            last()

    def retire(self, last: Callable[[], None]) -> None:
        """No call begins any more (PlanRetired); ``last`` is called when none runs, perhaps at once."""
        with self._lock:
            self._last = last
            idle = not self._running
        if idle:
            last()
