"""Sets stop signals at given times, in one thread that exists while there is something to wait for."""

from __future__ import annotations

import heapq
import itertools
import threading
import time

from device_sdk.runtimes.stop_signal import StopSignal

_IDLE_S = 1.0  # after which the thread ends


class Alarm:
    """``at`` may be called from any thread. Times are those of ``time.perf_counter``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._waiting: list[tuple[float, int, StopSignal]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def at(self, time_s: float, signal: StopSignal) -> None:
        """Set ``signal`` at ``time_s``. One that nobody needs any more is set in vain."""
        with self._changed:
            first = not self._waiting or time_s < self._waiting[0][0]
            heapq.heappush(self._waiting, (time_s, next(self._numbers), signal))
            if self._thread is None:
                self._thread = threading.Thread(target=self._ring, name="pathweave-deadline", daemon=True)
                self._thread.start()
            elif first:
                self._changed.notify()

    def _ring(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._changed.wait(_IDLE_S) and not self._waiting:
                    self._thread = None
                    return
                now_s = time.perf_counter()
                if self._waiting and self._waiting[0][0] > now_s:
                    self._changed.wait(self._waiting[0][0] - now_s)
                due: list[StopSignal] = []
                while self._waiting and self._waiting[0][0] <= time.perf_counter():
                    due.append(heapq.heappop(self._waiting)[2])
            for signal in due:
                signal.set()
