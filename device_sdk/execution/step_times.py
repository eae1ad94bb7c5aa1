"""How long the steps of a plan took, from the last runs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from device_sdk.execution.deadline import answer_times_ms, slowness

KEPT_RUNS = 128


class StepTimes:
    """The times of the last runs of one batch size. ``typical_ms``: of each step, when it was measured. Thread-safe."""

    def __init__(self, typical_ms: Sequence[float]) -> None:
        self.typical_ms = tuple(typical_ms)
        self._lock = threading.Lock()
        self._runs: deque[tuple[float, ...]] = deque(maxlen=KEPT_RUNS)

    def record(self, run_ms: Sequence[float]) -> None:
        """A run took so long for its first steps; one that ended before its first answer says nothing."""
        if run_ms:
            with self._lock:
                self._runs.append(tuple(run_ms))

    def slowness(self) -> float:
        """See ``deadline.slowness``."""
        return slowness(self._last(), self.typical_ms)

    def answer_times_ms(self, present_slowness: float | None = None) -> list[float]:
        """See ``deadline.answer_times_ms``."""
        return answer_times_ms(self._last(), self.typical_ms, present_slowness=present_slowness)

    def _last(self) -> list[tuple[float, ...]]:
        with self._lock:
            return list(self._runs)
