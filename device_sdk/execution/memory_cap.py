"""Memory cap of one model, shared by all its plans. It can be changed while they run."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


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
