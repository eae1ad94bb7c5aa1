"""Times of the steps of a plan in its last runs.

Old runs are forgotten, so that a device that was busy for a while is not taken to be so for ever.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from device_sdk.execution.deadline import RECENT_RUNS, answer_times_ms, slowness

KEPT_RUNS = 128  # at most
KEPT_S = 2.0  # older ones go, but for the last RECENT_RUNS


class StepTimes:
    """The times of the last runs of one batch size. ``typical_ms``: of each step, when it was measured. Thread-safe."""

    def __init__(self, typical_ms: Sequence[float], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.typical_ms = tuple(typical_ms)
        self._clock = clock
        self._lock = threading.Lock()  # guards the next
        self._runs: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=KEPT_RUNS)

    def record(self, run_ms: Sequence[float]) -> None:
        """Record the times of a run's first steps; a run that ended before its first answer is ignored."""
        if run_ms:
            with self._lock:
                self._runs.append((self._clock(), tuple(run_ms)))

    def slowness(self) -> float:
        """See ``deadline.slowness``."""
        return slowness(self._last(), self.typical_ms)

    def answer_times_ms(self, present_slowness: float | None = None) -> list[float]:
        """See ``deadline.answer_times_ms``."""
        return answer_times_ms(self._last(), self.typical_ms, present_slowness=present_slowness)

    def _last(self) -> list[tuple[float, ...]]:
        with self._lock:
            oldest_s = self._clock() - KEPT_S
            while len(self._runs) > RECENT_RUNS and self._runs[0][0] < oldest_s:
                self._runs.popleft()
            return [run_ms for _, run_ms in self._runs]
