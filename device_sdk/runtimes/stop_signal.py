"""Ends running calls from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopSignal:
    """Once set, from any thread, calls that take it end soon. It stays set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._set = False
        self._enders: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        """Whether calls have to end."""
        return self._set

    def set(self) -> None:
        """End the calls that run now, and those that begin later. Idempotent; waits for none of them."""
        with self._lock:
            self._set = True
            for end in self._enders:
                end()

    @contextmanager
    def ending_by(self, end: Callable[[], None]) -> Iterator[None]:
        """While the block runs, ``set`` calls ``end``, which has to be quick; at once if it is set already."""
        with self._lock:
            self._enders.append(end)
            if self._set:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._enders.remove(end)
