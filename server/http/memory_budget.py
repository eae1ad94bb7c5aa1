"""A budget in bytes for the requests that are in the server at once."""

from __future__ import annotations

import threading
from collections import Counter

from server.errors import BusyClientError, OverloadedError, TooLargeError

RESERVATION = "pathweave.reservation"  # key of a request's Reservation in its WSGI environment
SMALL_BYTES = 256 * 1024


class MemoryBudget:
    """Up to ``limit_bytes`` reserved at once, of them half by one owner. Thread-safe.

    Reservations above SMALL_BYTES leave an eighth free, so that small requests pass when large ones fill the rest.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()  # guards what follows
        self._by_owner: Counter[str] = Counter()

    @property
    def used_bytes(self) -> int:
        """The bytes that are reserved now."""
        with self._lock:
            return self._by_owner.total()

    def reserve(self, owner: str, size_bytes: int, *, factor: int = 1) -> Reservation:
        """Reserve ``size_bytes * factor`` for a request of ``owner``.

        Raises:
            TooLargeError: more than one owner can ever get.
            BusyClientError: the owner's half is used up.
            OverloadedError: the budget is used up.
        """
        reservation = Reservation(self, owner, factor)
        reservation.receive(size_bytes)
        return reservation

    def _take(self, owner: str, size_bytes: int, total_bytes: int) -> None:
        share = self.limit_bytes // 2
        limit = self.limit_bytes if total_bytes <= SMALL_BYTES else self.limit_bytes * 7 // 8
        with self._lock:
            if total_bytes > share:
                raise TooLargeError(f"the request takes more than {share} bytes of memory; split it")
            if self._by_owner[owner] + size_bytes > share:
                raise BusyClientError("the requests of this client take all the memory that it may have")
            if self._by_owner.total() + size_bytes > limit:
                raise OverloadedError("the bodies of other requests fill the memory")
            self._by_owner[owner] += size_bytes

    def _give_back(self, owner: str, size_bytes: int) -> None:
        with self._lock:
            self._by_owner[owner] -= size_bytes
            if not self._by_owner[owner]:
                del self._by_owner[owner]


class Reservation:
    """The bytes of one request in a MemoryBudget. ``factor``: bytes of memory per byte of body received."""

    def __init__(self, budget: MemoryBudget, owner: str, factor: int) -> None:
        self._budget = budget
        self._owner = owner
        self._factor = factor
        self._lock = threading.Lock()
        self._released = False
        self.size_bytes = 0

    def receive(self, size_bytes: int) -> None:
        """Reserve for ``size_bytes`` more of the body. Raises as ``MemoryBudget.reserve``."""
        self.grow(size_bytes * self._factor)

    def grow(self, size_bytes: int) -> None:
        """Reserve ``size_bytes`` more. Raises as ``MemoryBudget.reserve``."""
        with self._lock:
            if self._released:
                raise OverloadedError("the connection was closed")
            self._budget._take(self._owner, size_bytes, self.size_bytes + size_bytes)
            self.size_bytes += size_bytes

    def release(self) -> None:
        """Give everything back. Idempotent."""
        with self._lock:
            if not self._released:
                self._released = True
                self._budget._give_back(self._owner, self.size_bytes)
