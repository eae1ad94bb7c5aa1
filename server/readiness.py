"""Readiness of the server: its database and its store of bundles answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from device_sdk.errors import StorageError

_log = logging.getLogger(__name__)

_FRESH_S = 1.0  # an answer is told again for so long: anybody may ask
_PATIENCE_S = 2.0  # a part that takes longer is away


class Readiness:
    """Asks ``parts``, by name, whether they answer: each raises StorageError if it is away.

    One question to a part at a time, so that a part that hangs holds one thread.
    """

    def __init__(
        self,
        parts: Mapping[str, Callable[[], None]],
        *,
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts, self._patience_s, self._clock = dict(parts), patience_s, clock
        self._threads = ThreadPoolExecutor(max_workers=len(parts), thread_name_prefix="readiness")
        self._lock = threading.Lock()  # guards all that follows
        self._asked: dict[str, Future[None]] = {}
        self._away: list[str] = []
        self._until_s = 0.0

    def away(self) -> list[str]:
        """The names of the parts that are away."""
        with self._lock:
            if self._clock() >= self._until_s:
                before, self._away = self._away, self._ask()
                self._until_s = self._clock() + _FRESH_S
                if before != self._away:
                    _log.warning("away: %s", ", ".join(self._away) or "nothing any more")
            return self._away

    def close(self) -> None:
        """Ask no more. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self) -> list[str]:
        for name, check in self._parts.items():
            if name not in self._asked or self._asked[name].done():
                self._asked[name] = self._threads.submit(check)
        ends_s = time.monotonic() + self._patience_s
        return [name for name in self._parts if not _answers(self._asked[name], ends_s - time.monotonic())]


def _answers(asked: Future[None], wait_s: float) -> bool:
    try:
        asked.result(timeout=max(0.0, wait_s))
    except (StorageError, FutureTimeoutError):
        return False
    return True
