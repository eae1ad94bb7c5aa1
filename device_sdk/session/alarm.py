"""Sets stop signals at given times, in one thread that exists while there is something to wait for."""

from __future__ import annotations

import heapq
import itertools
import threading
import time

from device_sdk.runtimes.port import StopSignal

_IDLE_S = 1.0  # after which the thread ends


class Alarm:
    """``at`` may be called from any thread. Times are those of ``time.perf_counter``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._waiting: list[tuple[float, int, StopSignal]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, time_s: float, signal: StopSignal) -> None:
        """Set ``signal`` at ``time_s``. One that is set before, because it is no longer needed, is forgotten."""
        with self._changed:
            first = not self._waiting or time_s < self._waiting[0][0]
            heapq.heappush(self._waiting, (time_s, next(self._numbers), signal))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._ring, name="pathweave-deadline", daemon=True)
                self._thread.start()
            elif first:
                self._changed.notify()

    def close(self) -> None:
        """End the thread; what waits is not set any more. May be called twice."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _ring(self) -> None:
        idle_since_s = time.perf_counter()
        while True:
            with self._changed:
                now_s = time.perf_counter()
                if self._waiting:
                    idle_since_s = now_s
                if self._closed or now_s - idle_since_s >= _IDLE_S:
                    self._thread = None
                    return
                next_s = self._waiting[0][0] if self._waiting else idle_since_s + _IDLE_S
                self._changed.wait(min(max(next_s - now_s, 0.0), _IDLE_S))
                due = self._due(time.perf_counter())
            for signal in due:
                signal.set()

    def _due(self, now_s: float) -> list[StopSignal]:
        due = []
        while self._waiting and (self._waiting[0][0] <= now_s or self._waiting[0][2].is_set):
            due.append(heapq.heappop(self._waiting)[2])
        return due
