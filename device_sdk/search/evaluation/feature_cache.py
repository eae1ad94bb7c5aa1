"""Features of prefixes under one cap in bytes: what the group in hand shares, what later ones may need."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Edge

Prefix = tuple[Edge, ...]
Key = tuple[int, Prefix]  # the batch of samples, the edges that these went through


@dataclass
class _Entry:
    features: list[Array]
    nbytes: int
    worth: float
    serial: int  # tells the entry's own line in the heap from outdated ones
    pinned: bool = False


class FeatureCache:
    """The only keeper of features: what is not in here lives for one edge run.

    ``kept_bytes``, counted on the arrays themselves, never exceeds ``cap_bytes``: room is made before something comes
    in. What is pinned stays; of the rest, what is worth least goes first. What is worth nothing goes when unpinned.
    Source: AdaptiveNet §5.2, there without persistence.
    """

    def __init__(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._entries: dict[Key, _Entry] = {}
        self._by_worth: list[tuple[float, int, Key]] = []  # a heap; outdated lines are skipped when met
        self._serials = itertools.count()
        self.kept_bytes = 0
        self.peak_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> list[Array] | None:
        """The features kept under ``key``."""
        entry = self._entries.get(key)
        return entry.features if entry else None

    def keep(self, key: Key, features: list[Array], *, worth: float, pin: bool = False) -> bool:
        """Keep ``features``, and if ``pin`` until ``unpin``; False if that does not fit.

        To make room, unpinned ones that are worth less are dropped; for a pinned one any unpinned ones are.
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
        """Let go of what ``keep`` pinned; it stays for as long as it is worth its room."""
        entry = self._entries[key]
        entry.pinned = False
        self._note(key, entry, entry.worth)

    def revalue(self, worth: Callable[[Prefix], float]) -> None:
        """Say anew what every entry is worth, for instance because a new generation begins."""
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
        """Drop unpinned entries until ``nbytes`` fit; only those worth less than ``worth``, if it is given."""
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
