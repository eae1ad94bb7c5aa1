"""A new search while the old subnet serves."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from device_sdk.errors import InfeasibleBudgetError, PathweaveError
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget

_NICENESS = 10  # calls go first
_JOIN_S = 10.0

Search = Callable[[Budget, Callable[[], bool]], list[Candidate]]
"""Looks for candidates at a budget of predicted latency, until the second argument returns True."""


@dataclass(frozen=True)
class SearchOutcome:
    """Result of a search at a drift ratio; ``failure``: the error that ended it, None without one."""

    budget: Budget
    ratio: float
    candidates: tuple[Candidate, ...]
    seconds: float
    failure: str | None


class BackgroundSearch:
    """Runs at most one search at a time, in a thread of low priority, which also calls ``ended``."""

    def __init__(self, search: Search, ended: Callable[[SearchOutcome], None]) -> None:
        self._search, self._ended = search, ended
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._begun_s = -math.inf
        self._hopeless_ratio = math.inf

    def begin(self, budget: Budget, ratio: float, *, now_s: float, cooldown_s: float) -> bool:
        """Search at ``budget`` unless that is too soon or known to be in vain; True if a search is under way."""
        if self._thread is not None and self._thread.is_alive():
            return True
        if self._stopped.is_set() or ratio >= self._hopeless_ratio or 0 <= now_s - self._begun_s < cooldown_s:
            return False
        self._begun_s = now_s
        self._thread = threading.Thread(target=self._run, args=(budget, ratio), name="pathweave-search", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """End the search in progress, if there is one, and begin none any more."""
        self._stopped.set()
        self.wait(_JOIN_S)

    def wait(self, timeout_s: float) -> None:
        """Wait until the search in progress has ended, if there is one, at most ``timeout_s``."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self, budget: Budget, ratio: float) -> None:
        if hasattr(os, "setpriority"):
            with contextlib.suppress(OSError):  # on Linux a thread has a priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        started = time.monotonic()
        found: list[Candidate] = []
        failure = None
        try:
            found = self._search(budget, self._stopped.is_set)
        except PathweaveError as error:
            failure = str(error)
            if isinstance(error, InfeasibleBudgetError):
                self._hopeless_ratio = min(self._hopeless_ratio, ratio)
        if not self._stopped.is_set():
            self._ended(SearchOutcome(budget, ratio, tuple(found), time.monotonic() - started, failure))
