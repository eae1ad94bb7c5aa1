"""Ends running calls from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


class StopSignal:
    """Once set, from any thread, calls that take it end soon. It stays set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._set = False
        self._enders: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        """True once calls have to end."""
        return self._set

    def set(self) -> None:
        """End the calls that run now, and those that begin later. Idempotent; waits for none of them."""
        with self._lock:
            self._set = True
            for end in self._enders:
                end()

    def ending_by(self, end: Callable[[], None]) -> AbstractContextManager[None]:
        """While the block runs, ``set`` calls ``end``, which has to be quick; at once if it is set already."""
        return _Ending(self, end)

    def _begin(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._enders.append(end)
            if self._set:
                end()

    def _finish(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._enders.remove(end)


class _Ending:
    """``with``: ``end`` is among the enders of ``signal``. A class, for a generator would cost every call more."""

    __slots__ = ("_end", "_signal")

    def __init__(self, signal: StopSignal, end: Callable[[], None]) -> None:
        self._signal, self._end = signal, end

    def __enter__(self) -> None:
        self._signal._begin(self._end)

    def __exit__(self, *error: object) -> None:
        self._signal._finish(self._end)
