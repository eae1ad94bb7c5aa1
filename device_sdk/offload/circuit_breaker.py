"""When to leave a failing server alone, and when to try it again. Pure but for the clock, which is an argument."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

Clock = Callable[[], float]  # seconds, monotonic
State = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Closed until ``failures`` calls in a row fail, then open for ``cooldown_s``, then half-open: one trial at a time.

    A trial that succeeds closes it; one that fails opens it for twice as long as before, up to ``longest_cooldown_s``.
    A trial that is never reported is given up after the cooldown. May be used from several threads at once.
    """

    def __init__(
        self, *, clock: Clock, failures: int = 3, cooldown_s: float = 5.0, longest_cooldown_s: float = 60.0
    ) -> None:
        self._clock = clock
        self._failures = failures
        self._shortest_s = cooldown_s
        self._longest_s = longest_cooldown_s
        self._lock = threading.Lock()  # guards everything below
        self._in_a_row = 0
        self._cooldown_s = cooldown_s
        self._open_until: float | None = None  # None: closed
        self._trial_until: float | None = None  # None: no trial is under way

    @property
    def state(self) -> State:
        """Where it stands now."""
        with self._lock:
            return self._state()

    @property
    def retry_in_s(self) -> float:
        """How long it stays open."""
        with self._lock:
            return max(0.0, self._open_until - self._clock()) if self._open_until is not None else 0.0

    def allows(self) -> bool:
        """Whether a call may be made now; if so, its end has to be reported. Half-open, this begins the trial."""
        with self._lock:
            state = self._state()
            if state != "half-open":
                return state == "closed"
            now = self._clock()
            if self._trial_until is not None and now < self._trial_until:
                return False
            self._trial_until = now + self._cooldown_s
            return True

    def succeeded(self) -> None:
        """A call that was allowed got its answer. While open it changes nothing: that call began before."""
        with self._lock:
            if self._state() != "open":
                self._in_a_row = 0
                self._cooldown_s = self._shortest_s
                self._open_until = self._trial_until = None

    def failed(self) -> None:
        """A call that was allowed failed. While open it changes nothing."""
        with self._lock:
            self._in_a_row += 1
            if self._state() == "half-open":
                self._cooldown_s = min(2 * self._cooldown_s, self._longest_s)
                self._open()
            elif self._state() == "closed" and self._in_a_row >= self._failures:
                self._open()

    def trip(self) -> None:
        """A call that was allowed failed in a way that the next would, too: open at once."""
        with self._lock:
            if self._state() == "half-open":
                self._cooldown_s = min(2 * self._cooldown_s, self._longest_s)
            if self._state() != "open":
                self._open()

    def _state(self) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half-open"

    def _open(self) -> None:
        self._open_until = self._clock() + self._cooldown_s
        self._trial_until = None
