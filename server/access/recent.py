"""Decisions of the gate that were just made, so that an answer to a hard sample waits for no database."""

from __future__ import annotations

import time
from collections.abc import Callable

from device_sdk.errors import StorageError
from server.access.tokens import Decision, Gate

_FRESH_S = 1.0
_STALE_S = 60.0
_MAX_KNOWN = 1024


class RecentDecisions:
    """Admits by decisions of ``gate`` that are at most a second old.

    While the database is away, those of the last minute stand. What changes anything asks the gate itself.
    """

    def __init__(self, gate: Gate, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gate, self._clock = gate, clock
        self._known: dict[tuple[str | None, str], tuple[Decision, float]] = {}  # with the time of the decision

    def decide(self, token: str | None, address: str) -> Decision:
        """As ``Gate.decide``."""
        key, now = (token, "" if token else address), self._clock()
        known = self._known.get(key)
        if known is not None and now - known[1] < _FRESH_S:
            return known[0]
        try:
            decision = self._gate.decide(token, address)
        except StorageError:
            if known is None or now - known[1] >= _STALE_S:
                raise
            return known[0]
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = decision, now
        return decision
