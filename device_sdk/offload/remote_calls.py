"""Calls to a server that never raise and never take longer than their time-out, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from device_sdk.errors import ClosedError, DeadlineError, PathweaveError, UsageError
from device_sdk.offload.circuit_breaker import CircuitBreaker
from device_sdk.runtimes.port import Array
from device_sdk.transports.port import Clock

MAX_UNDER_WAY = 8  # requests, those that nobody waits for any more included


@dataclass(frozen=True)
class RemoteReply:
    """``output``: logits [batch, classes], float32; or None, and ``failure`` says why in one line."""

    output: Array | None
    failure: str | None


class _Call:
    """One call: its worker leaves the outcome here, and nobody else looks."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.done = threading.Event()
        self.output: Array | None = None
        self.error: Exception | None = None


class RemoteCalls:
    """Runs calls to one server. For several threads at once.

    Every call runs in a thread of its own, so that what cannot be timed out (looking up a name) holds nobody up. One
    that is late is left behind, and its reply with it; ``MAX_UNDER_WAY`` bounds how many there are. While ``breaker``
    is open nothing is called; a UsageError, which only people can mend, opens it at once.
    """

    def __init__(self, *, timeout_s: float, breaker: CircuitBreaker | None, clock: Clock) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._breaker = breaker or CircuitBreaker(clock=clock)
        self._slots = threading.BoundedSemaphore(MAX_UNDER_WAY)
        self._last_failure = ""
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nothing is called any more."""
        return self._closed

    def close(self) -> None:
        """Call nothing from now on. May be called twice."""
        self._closed = True

    def run(self, ask: Callable[[float], Array]) -> RemoteReply:
        """What ``ask`` returns, if it does so in time; it is given the deadline, on the clock."""
        deadline = self._clock() + self._timeout_s
        if self._closed:
            return RemoteReply(None, "it was closed")
        if not self._slots.acquire(blocking=False):
            return RemoteReply(None, f"{MAX_UNDER_WAY} requests are still under way")
        if not self._breaker.allows():
            self._slots.release()
            wait_s = self._breaker.retry_in_s
            return RemoteReply(None, f"the server is left alone for {wait_s:.1f} s, since {self._last_failure}")
        return self._outcome(self._start(ask, deadline))

    def left_s(self, deadline: float) -> float:
        """The time until ``deadline``; for what ``ask`` calls.

        Raises:
            DeadlineError: there is none. ClosedError: the calls were closed.
        """
        if self._closed:
            raise ClosedError("it was closed")
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise DeadlineError(self._late)
        return left_s

    @property
    def _late(self) -> str:
        return f"no answer came within {self._timeout_s:g} s"

    def _start(self, ask: Callable[[float], Array], deadline: float) -> _Call:
        call = _Call(deadline)

        def work() -> None:
            try:
                call.output = ask(deadline)
            except Exception as error:
                call.error = error
            finally:
                self._slots.release()
                call.done.set()

        try:
            threading.Thread(target=work, name="remote call", daemon=True).start()
        except RuntimeError as error:  # no more threads here
            self._slots.release()
            call.error = error
            call.done.set()
        return call

    def _outcome(self, call: _Call) -> RemoteReply:
        """Wait for the call until its deadline, and tell the breaker how it ended."""
        answered = call.done.wait(max(0.0, call.deadline - self._clock()))
        if answered and call.output is not None:
            self._breaker.succeeded()
            return RemoteReply(call.output, None)
        failure = _one_line(call.error) if answered else self._late
        self._last_failure = failure
        if isinstance(call.error, UsageError):
            self._breaker.trip()
        else:
            self._breaker.failed()
        return RemoteReply(None, failure)


def _one_line(error: Exception | None) -> str:
    if error is None:
        return "there was no output"
    text = str(error) if isinstance(error, PathweaveError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300] or type(error).__name__
