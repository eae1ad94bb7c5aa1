"""A thread that polls at intervals, to follow the conditions of a device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from device_sdk.errors import ClosedError, ForkedError

_log = logging.getLogger(__name__)

_JOIN_S = 10.0


class LookingThread:
    """Calls ``look`` every ``pause_s`` seconds, from ``start`` to ``stop``, or until the model is closed.

    An error of ``look`` is logged and does not end the thread. ``subject``: the condition followed, for the log.
    """

    def __init__(self, look: Callable[[], None], *, subject: str, pause_s: float) -> None:
        self._look, self._subject, self._pause_s = look, subject, pause_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pathweave-{subject}", daemon=True)

    @property
    def stopped(self) -> bool:
        """True once ``stop`` was called."""
        return self._stopped.is_set()

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. May be called twice, and from ``look``."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            try:
                self._look()
            except (ClosedError, ForkedError):
                break
            except Exception:  # a thread that ends would leave the plan behind without a word
                _log.exception("following the %s met an error and goes on", self._subject)
