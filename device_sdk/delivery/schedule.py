"""How long and how often a delivery is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from device_sdk.errors import DeadlineError, ProtocolError, RefusedError, TransferError
from device_sdk.transports.port import Clock, Deadlines

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0

_PASSING = frozenset({408, 425, 429})  # besides 5xx

Result = TypeVar("Result")


@dataclass(frozen=True)
class Schedule:
    """``idle_s`` without a byte, all done at ``ends_at_s`` of ``clock``, ``attempts`` in a row that lead nowhere."""

    idle_s: float
    ends_at_s: float
    attempts: int
    sleep: Callable[[float], None]
    clock: Clock

    def left(self) -> Deadlines:
        """The deadlines of a request that starts now (DeadlineError if it should not)."""
        left_s = self.ends_at_s - self.clock()
        if left_s <= 0:
            raise DeadlineError("the time for the delivery is up", hint="try again: it goes on where it stopped")
        return Deadlines(idle_s=self.idle_s, total_s=left_s)

    def pause(self, failures: int) -> None:
        """Wait after so many attempts that led nowhere, each time longer, but not beyond the end."""
        pause_s = min(FIRST_PAUSE_S * 2 ** min(failures, 10), LONGEST_PAUSE_S)
        self.sleep(min(pause_s, self.left().total_s))

    def retry(self, call: Callable[[Deadlines], Result]) -> Result:
        """``call`` until it does not fail in a passing way; the last failure is raised."""
        for failures in range(self.attempts - 1):
            try:
                return call(self.left())
            except TransferError as error:
                if not passing(error):
                    raise
            self.pause(failures)
        return call(self.left())


def passing(error: TransferError) -> bool:
    """Whether the same request may work in a moment."""
    if isinstance(error, RefusedError):
        return error.status in _PASSING or error.status >= 500
    return not isinstance(error, ProtocolError)
