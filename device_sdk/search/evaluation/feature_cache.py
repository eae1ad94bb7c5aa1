"""Feature cache with a byte cap: features that the current group shares and that later groups may need."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Edge

Prefix = tuple[Edge, ...]
Key = tuple[int, Prefix]  # batch number, edges that the batch has run through


@dataclass
class _Entry:
    features: list[Array]
    nbytes: int
    worth: float
    serial: int  # marks the entry's current item in the heap; older items are stale
    pinned: bool = False


class FeatureCache:
    """Holds all features that outlive one edge run.

    ``kept_bytes``, the sum of the arrays' sizes, never exceeds ``cap_bytes``: entries are evicted before one is added.
    Pinned entries are not evicted; of the others the least valuable is evicted first. An unpinned entry of value 0 is
    dropped at once. Source: AdaptiveNet §5.2, there without persistence.
    """

    def __init__(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._entries: dict[Key, _Entry] = {}
        self._by_worth: list[tuple[float, int, Key]] = []  # a heap with lazy deletion of stale items
        self._serials = itertools.count()
        self.kept_bytes = 0
        self.peak_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> list[Array] | None:
        """The features cached under ``key``, or None."""
        entry = self._entries.get(key)
        return entry.features if entry else None

    def keep(self, key: Key, features: list[Array], *, worth: float, pin: bool = False) -> bool:
        """Cache ``features``; with ``pin`` until ``unpin``. Returns False if they do not fit.

        To make room, unpinned entries of lower value are evicted; for a pinned entry, any unpinned ones.
        """
        entry = self._entries.get(key)
        if entry is None:
            nbytes = sum(feature.nbytes for feature in features)
            if not self._make_room(nbytes, worth=None if pin else worth):
                return False
            entry = self._entries[key] = _Entry(features, nbytes, worth, next(self._serials))
            self.kept_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.kept_bytes)
        entry.pinned = entry.pinned or pin
        self._note(key, entry, worth)
        return True

    def unpin(self, key: Key) -> None:
        """Make a pinned entry evictable."""
        entry = self._entries[key]
        entry.pinned = False
        self._note(key, entry, entry.worth)

    def revalue(self, worth: Callable[[Prefix], float]) -> None:
        """Update the value of every entry, for instance at the start of a generation."""
        self._by_worth.clear()
        for key, entry in list(self._entries.items()):
            self._note(key, entry, worth(key[1]))

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self._by_worth.clear()
        self.kept_bytes = 0

    def _note(self, key: Key, entry: _Entry, worth: float) -> None:
        entry.worth, entry.serial = worth, next(self._serials)
        if entry.pinned:
            return
        if worth > 0:
            heapq.heappush(self._by_worth, (worth, entry.serial, key))
        else:
            self._drop(key)

    def _make_room(self, nbytes: int, *, worth: float | None) -> bool:
        """Evict unpinned entries until ``nbytes`` fit; if ``worth`` is given, only those of lower value."""
        while self.kept_bytes + nbytes > self._cap_bytes and self._by_worth:
            least, serial, key = self._by_worth[0]
            entry = self._entries.get(key)
            outdated = entry is None or entry.pinned or entry.serial != serial
            if not outdated and worth is not None and least >= worth:
                return False
            heapq.heappop(self._by_worth)
            if not outdated:
                self._drop(key)
        return self.kept_bytes + nbytes <= self._cap_bytes

    def _drop(self, key: Key) -> None:
        self.kept_bytes -= self._entries.pop(key).nbytes
