"""The schedule of a transfer: pauses before another attempt, and the end of all attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from device_sdk.errors import DeadlineError, ProtocolError, RefusedError, TransferError
from device_sdk.transports.port import Clock, Deadlines

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0

MIN_BYTES_PER_S = 1_000.0  # of all connections together; a server below it would hold a device for hours
RATE_WINDOW_S = 15.0

_TRANSIENT = frozenset({408, 425, 429})  # besides 5xx

Result = TypeVar("Result")


class TooSlowError(DeadlineError):
    """The server sent less than the minimum rate. Not retried: the bytes received are kept for the next delivery."""


class MinimumRate:
    """Watches the bytes of a delivery over all its connections. Thread-safe."""

    def __init__(self, clock: Clock, *, bytes_per_s: float = MIN_BYTES_PER_S, window_s: float = RATE_WINDOW_S) -> None:
        self._clock, self._bytes_per_s, self._window_s = clock, bytes_per_s, window_s
        self._lock = threading.Lock()  # guards the two that follow
        self._began_s, self._bytes = clock(), 0

    def received(self, count: int) -> None:
        """Count ``count`` bytes.

        Raises:
            TooSlowError: the window that ends now had less than the minimum.
        """
        with self._lock:
            self._bytes += count
            passed_s = self._clock() - self._began_s
            if passed_s < self._window_s:
                return
            too_slow = self._bytes < self._bytes_per_s * passed_s
            self._began_s, self._bytes = self._clock(), 0
        if too_slow:
            raise TooSlowError(
                f"the server sent less than {self._bytes_per_s:.0f} bytes per second for {passed_s:.0f} s",
                hint="try again: it resumes where it stopped",
            )


@dataclass(frozen=True)
class Schedule:
    """Limits: ``idle_s`` without a byte, ``ends_at_s`` on ``clock``, ``attempts`` consecutive attempts that fail."""

    idle_s: float
    ends_at_s: float
    attempts: int
    sleep: Callable[[float], None]
    clock: Clock
    rate: MinimumRate = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", MinimumRate(self.clock))

    def left(self) -> Deadlines:
        """The deadlines of a request that starts now. Raises DeadlineError if no time is left."""
        left_s = self.ends_at_s - self.clock()
        if left_s <= 0:
            raise DeadlineError("the delivery exceeded its deadline", hint="try again: it resumes where it stopped")
        return Deadlines(idle_s=self.idle_s, total_s=left_s)

    def pause(self, failures: int) -> None:
        """Exponential backoff after ``failures`` consecutive failures, at most until the deadline."""
        pause_s = min(FIRST_PAUSE_S * 2 ** min(failures, 10), LONGEST_PAUSE_S)
        self.sleep(min(pause_s, self.left().total_s))

    def retry(self, call: Callable[[Deadlines], Result]) -> Result:
        """Repeat ``call`` while it fails with transient errors; the last failure is raised."""
        for failures in range(self.attempts - 1):
            try:
                return call(self.left())
            except TransferError as error:
                if not transient(error):
                    raise
            self.pause(failures)
        return call(self.left())


def transient(error: TransferError) -> bool:
    """True if a retry of the same request may succeed."""
    if isinstance(error, RefusedError):
        return error.status in _TRANSIENT or error.status >= 500
    return not isinstance(error, (ProtocolError, TooSlowError))
