"""A circuit breaker for a failing server. Pure except for the injected clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

Clock = Callable[[], float]  # seconds, monotonic
State = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Closed until ``failures`` consecutive calls fail, then open for ``cooldown_s``, then half-open: one trial a time.

    A successful trial closes it; a failed one opens it for twice as long as before, up to ``longest_cooldown_s``. A
    trial that is never reported expires after the cooldown, and a clock that is set back ends both. Thread-safe.
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
        self._trial_until: float | None = None  # None: no trial is in progress

    @property
    def state(self) -> State:
        """The current state."""
        with self._lock:
            return self._state()

    @property
    def retry_in_s(self) -> float:
        """Seconds until it is half-open; 0 if it is not open."""
        with self._lock:
            return max(0.0, self._open_until - self._clock()) if self._open_until is not None else 0.0

    def allows(self) -> bool:
        """True if a call is allowed now; its outcome must be reported. In half-open state this starts the trial."""
        with self._lock:
            state = self._state()
            if state != "half-open":
                return state == "closed"
            now = self._clock()
            if self._trial_until is not None and 0 < self._trial_until - now <= 2 * self._longest_s:
                return False
            self._trial_until = now + self._cooldown_s
            return True

    def succeeded(self) -> None:
        """Report that an allowed call succeeded. Ignored while open: the call started earlier."""
        with self._lock:
            if self._state() != "open":
                self._in_a_row = 0
                self._cooldown_s = self._shortest_s
                self._open_until = self._trial_until = None

    def failed(self) -> None:
        """Report that an allowed call failed. Ignored while open."""
        with self._lock:
            self._in_a_row += 1
            if self._state() == "half-open":
                self._cooldown_s = min(2 * self._cooldown_s, self._longest_s)
                self._open()
            elif self._state() == "closed" and self._in_a_row >= self._failures:
                self._open()

    def end_cooldown(self) -> None:
        """Become half-open if it is open: the server was seen to answer something else."""
        with self._lock:
            if self._open_until is not None:
                self._open_until = min(self._open_until, self._clock())

    def trip(self) -> None:
        """Report a permanent failure of an allowed call: opens at once."""
        with self._lock:
            if self._state() == "half-open":
                self._cooldown_s = min(2 * self._cooldown_s, self._longest_s)
            if self._state() != "open":
                self._open()

    def _state(self) -> State:
        if self._open_until is None:
            return "closed"
        left_s = self._open_until - self._clock()
        return "open" if 0 < left_s <= 2 * self._longest_s else "half-open"  # longer: the clock was set back

    def _open(self) -> None:
        self._open_until = self._clock() + self._cooldown_s
        self._trial_until = None
