"""Calls that run: how many, how long they take, and the memory cap that they keep to."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from types import TracebackType
from typing import Protocol


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


KEPT = 256  # calls
_PACE_CALLS, _LEAST_PACE_CALLS = 33, 9


class ServiceTimes:
    """Records the times of calls, from any thread, and sets ``wake`` when one is out of bounds.

    This runs in every call: it compares and appends, nothing else.
    """

    __slots__ = ("_calls_ms", "_high_ms", "_low_ms", "_wake")

    def __init__(self, wake: threading.Event, *, low_ms: float, high_ms: float) -> None:
        self._calls_ms: deque[float] = deque(maxlen=KEPT)
        self._wake = wake
        self._low_ms, self._high_ms = low_ms, high_ms

    def record(self, service_ms: float) -> None:
        """Record the time of a call with one sample that the subnet answered."""
        self._calls_ms.append(service_ms)
        if not self._low_ms <= service_ms <= self._high_ms:
            self._wake.set()

    def last(self) -> list[float]:
        """The last calls, the oldest first, milliseconds."""
        return list(self._calls_ms.copy())


class CallPace:
    """The pace of the last calls, from any thread: this runs in every call and only appends."""

    __slots__ = ("_starts_s",)

    def __init__(self) -> None:
        self._starts_s: deque[float] = deque(maxlen=_PACE_CALLS)

    def note(self, start_s: float) -> None:
        """Record that a call began at ``start_s`` of a monotonic clock."""
        self._starts_s.append(start_s)

    def calls_per_second(self) -> float | None:
        """One over the median interval of the last calls; None after fewer than nine."""
        starts_s = list(self._starts_s.copy())
        if len(starts_s) < _LEAST_PACE_CALLS:
            return None
        interval_s = median(after - before for before, after in pairwise(starts_s))
        return 1.0 / interval_s if interval_s > 0 else None


class PlanRetired(Exception):
    """The plan was replaced, or the cap sank below its need: the call begins again with the present plan."""


class Evictable(Protocol):
    """Something that holds memory which no call uses."""

    def evict_idle(self) -> None:
        """Free what no call uses. The caller holds ``MemoryCap.changed``."""


class MemoryCap:
    """Counts the bytes that are taken, as footprints state them, and makes room. Thread-safe.

    ``changed`` guards everything here and is notified whenever there may be more room. ``turn`` serialises requests
    for pages: a thread that waits for room holds the turn and no page, so deadlock is impossible.
    """

    def __init__(self, cap_bytes: int | None = None) -> None:
        self.changed = threading.Condition()
        self.turn = threading.Lock()
        self.used_bytes = 0
        self.peak_bytes = 0  # the most that was taken so far
        self._cap_bytes = cap_bytes
        self._holders: weakref.WeakSet[Evictable] = weakref.WeakSet()

    @property
    def cap_bytes(self) -> int | None:
        """The cap; None for none."""
        return self._cap_bytes

    def set(self, cap_bytes: int | None) -> None:
        """Change the cap. Above a lower one idle pages leave at once, those that calls use when these end."""
        with self.changed:
            self._cap_bytes = cap_bytes
            self.make_room(0)
            self.changed.notify_all()

    def register(self, holder: Evictable) -> None:
        """Have ``holder`` evict its idle memory when others need room."""
        with self.changed:
            self._holders.add(holder)

    def has_room(self, size_bytes: int) -> bool:
        """True if ``size_bytes`` more fit. The caller holds ``changed``."""
        return self._cap_bytes is None or self.used_bytes + size_bytes <= self._cap_bytes

    def make_room(self, size_bytes: int, *, keeping: Evictable | None = None) -> bool:
        """Evict idle memory, except that of ``keeping``, until ``size_bytes`` fit; True if they do.

        The caller holds ``changed``.
        """
        for holder in list(self._holders):
            if self.has_room(size_bytes):
                break
            if holder is not keeping:
                holder.evict_idle()
        return self.has_room(size_bytes)

    def never_fits(self, size_bytes: int) -> bool:
        """True if ``size_bytes`` are more than the whole cap."""
        return self._cap_bytes is not None and size_bytes > self._cap_bytes

    def take(self, size_bytes: int) -> None:
        """Count ``size_bytes`` as taken, room or not; negative ones as returned."""
        with self.changed:
            self.used_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            self.changed.notify_all()
