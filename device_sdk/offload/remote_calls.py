"""Calls to a server with a time-out, left alone for a while after failures."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from device_sdk.errors import ClosedError, DeadlineError, PathweaveError, ProtocolError, UsageError
from device_sdk.offload.client import InferenceClient
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.runtimes.port import Array
from device_sdk.transports.port import Clock, Transport

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


_REPLY_BYTES_PER_VALUE = 32  # upper bound of a float as JSON text
_REPLY_BYTES = 64 * 1024  # names, ids, white space
_MOST_REPLY_BYTES = 256 * 2**20  # of values; maps of many classes are large


def default_transport(model: RemoteModel) -> Transport:
    """The transport to the server of ``model``.

    Raises:
        UsageError: there is no transport for the server's URL.
    """
    from device_sdk.transports import make_transport

    return make_transport(model.server, token=model.token)


def make_client(
    model: RemoteModel,
    transport: Transport,
    *,
    output_shape: Sequence[int],
    clock: Clock,
    version: int | None = None,
) -> InferenceClient:
    """A client whose reply limit fits outputs of ``output_shape`` for ``max_batch`` samples, within a bound."""
    values = min(model.max_batch, 2**20) * math.prod(output_shape)
    limit = _REPLY_BYTES + min(_REPLY_BYTES_PER_VALUE * values, _MOST_REPLY_BYTES)
    return InferenceClient(model.server, model.model, transport, version=version, max_reply_bytes=limit, clock=clock)


def checked_logits(output: Array, *, samples: int, shape: Sequence[int]) -> Array:
    """A reply's output as float32 [samples, *shape]. Raises ProtocolError for another shape or overflow."""
    if output.shape != (samples, *shape):
        raise ProtocolError(f"the reply's shape is {list(output.shape)} for {samples} samples")
    with np.errstate(over="ignore"):
        logits = output.astype(np.float32, copy=False)
    if not np.isfinite(logits).all():
        raise ProtocolError("the reply's values are too large")
    return logits


MAX_UNDER_WAY = 8  # requests, including those abandoned after their time-out


@dataclass(frozen=True)
class RemoteReply:
    """``output``: [batch, *output] of the model, float32, [batch, classes] for a classifier.

    None where it failed; ``failure`` is the reason in one line.
    """

    output: Array | None
    failure: str | None


class _Call:
    """One call; its worker thread stores the outcome here."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.done = threading.Event()
        self.output: Array | None = None
        self.error: Exception | None = None


class RemoteCalls:
    """Runs calls to one server. Thread-safe.

    Each call runs in its own thread, so that the caller times out even where the call cannot (name lookup). A late call
    is abandoned and its reply discarded; ``MAX_UNDER_WAY`` bounds their number. While ``breaker`` is open no call is
    made; a UsageError, which a retry cannot fix, opens it at once.
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
        """True once ``close`` was called."""
        return self._closed

    @property
    def ready(self) -> bool:
        """True if a call would be made now: it is not closed, and the breaker not open."""
        return not self._closed and self._breaker.state != "open"

    def close(self) -> None:
        """Make no calls from now on. Idempotent."""
        self._closed = True

    def run(self, ask: Callable[[float], Array]) -> RemoteReply:
        """The result of ``ask``, which gets the deadline as its argument, or the reason that there is none in time."""
        deadline = self._clock() + self._timeout_s
        if self._closed:
            return RemoteReply(None, "it was closed")
        if not self._slots.acquire(blocking=False):
            return RemoteReply(None, f"{MAX_UNDER_WAY} requests are still in progress")
        if not self._breaker.allows():
            self._slots.release()
            wait_s = self._breaker.retry_in_s
            return RemoteReply(None, f"no requests to the server for {wait_s:.1f} s, since {self._last_failure}")
        return self._outcome(self._start(ask, deadline))

    def try_again(self) -> None:
        """Let the next call through as a trial if the breaker is open."""
        self._breaker.end_cooldown()

    def left_s(self, deadline: float) -> float:
        """The time until ``deadline``, for use within ``ask``.

        Raises:
            DeadlineError: the deadline passed. ClosedError: the calls were closed.
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
        except RuntimeError as error:  # the thread could not be started
            self._slots.release()
            call.error = error
            call.done.set()
        return call

    def _outcome(self, call: _Call) -> RemoteReply:
        """Wait for the call until its deadline, and report its outcome to the breaker."""
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
