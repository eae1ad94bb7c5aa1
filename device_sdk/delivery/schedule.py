"""Deadlines, retries and backoff of a delivery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from device_sdk.errors import DeadlineError, ProtocolError, RefusedError, TransferError
from device_sdk.transports.port import Clock, Deadlines

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0

_TRANSIENT = frozenset({408, 425, 429})  # besides 5xx

Result = TypeVar("Result")


@dataclass(frozen=True)
class Schedule:
    """Limits: ``idle_s`` without a byte, ``ends_at_s`` on ``clock``, ``attempts`` consecutive attempts that fail."""

    idle_s: float
    ends_at_s: float
    attempts: int
    sleep: Callable[[float], None]
    clock: Clock

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
    """Whether a retry of the same request may succeed."""
    if isinstance(error, RefusedError):
        return error.status in _TRANSIENT or error.status >= 500
    return not isinstance(error, ProtocolError)
