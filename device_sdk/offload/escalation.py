"""Hard samples are answered by a server's model, if it does so in time; else the device's own answer stands."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from device_sdk.errors import ClosedError, DeadlineError, PathweaveError, ProtocolError, UsageError
from device_sdk.offload.agreement import Agreement, agree, fill
from device_sdk.offload.circuit_breaker import CircuitBreaker
from device_sdk.offload.client import InferenceClient
from device_sdk.preprocessing import Preprocessing
from device_sdk.runtimes.port import Array
from device_sdk.transports.port import Clock, Transport

Privacy = Literal["never", "inputs"]

MAX_UNDER_WAY = 8  # requests, those that nobody waits for any more included
MAX_TIMEOUT_S = 3600.0
_REPLY_BYTES_PER_VALUE = 32  # a float as JSON text, with room
_REPLY_BYTES = 64 * 1024  # names, ids, white space


@dataclass(frozen=True, kw_only=True)
class EscalationSettings:
    """Who answers hard samples, and what may leave the device for it.

    ``server``: the URL before ``/v2``. ``privacy``: with ``never`` nothing is sent at all, with ``inputs`` the hard
    samples are. ``timeout_s``: for all samples of a call together. ``max_batch``: samples per request.

    Raises:
        UsageError: a value that makes no sense.
    """

    server: str
    model: str
    token: str | None = field(default=None, repr=False)
    privacy: Privacy = "never"
    timeout_s: float = 1.0
    max_batch: int = 64

    def __post_init__(self) -> None:
        if not self.server or not self.model:
            raise UsageError("escalation needs a server and the name of a model there")
        if self.privacy not in get_args(Privacy):
            raise UsageError(f"there is no privacy setting {self.privacy!r}", hint="known: never, inputs")
        if not (math.isfinite(self.timeout_s) and 0 < self.timeout_s <= MAX_TIMEOUT_S):
            raise UsageError(f"a time-out lies above 0 and within {MAX_TIMEOUT_S:.0f} s, not at {self.timeout_s}")
        if self.max_batch < 1:
            raise UsageError(f"max_batch is {self.max_batch}, a request holds at least one sample")


@dataclass(frozen=True)
class EscalationReply:
    """``output``: logits [batch, classes], float32; or None, and ``failure`` says why in one line."""

    output: Array | None
    failure: str | None


class _Call:
    """One call of ``answer``: its worker leaves the outcome here, and nobody else looks."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.done = threading.Event()
        self.output: Array | None = None
        self.error: Exception | None = None


class Escalator:
    """Asks the server's model. Never raises, never takes longer than the time-out. For several threads at once.

    Before the first request, and again after any failure, the model's metadata must show that it can answer for the
    device's model. ``class_names``, ``input_shape`` [c, h, w] and ``preprocessing`` are the device's.

    Every request runs in a thread of its own, so that what cannot be timed out (looking up a name) holds nobody up. One
    that is late is left behind, and its reply with it; ``MAX_UNDER_WAY`` bounds how many there are.

    Raises:
        UsageError: nothing knows how to talk to such a server.
    """

    def __init__(
        self,
        settings: EscalationSettings,
        *,
        class_names: Sequence[str],
        input_shape: Sequence[int],
        preprocessing: Preprocessing,
        transport: Transport | None = None,
        breaker: CircuitBreaker | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._settings = settings
        self._class_names = tuple(class_names)
        self._input_shape = tuple(input_shape)
        self._preprocessing = preprocessing
        self._clock = clock
        self._breaker = breaker or CircuitBreaker(clock=clock)
        self._transport = transport or _default_transport(settings)
        values = min(settings.max_batch, 2**20) * len(self._class_names)
        self._client = InferenceClient(
            settings.server,
            settings.model,
            self._transport,
            max_reply_bytes=_REPLY_BYTES + _REPLY_BYTES_PER_VALUE * values,
            clock=clock,
        )
        self._slots = threading.BoundedSemaphore(MAX_UNDER_WAY)
        self._agreement: Agreement | None = None
        self._last_failure = ""
        self._closed = False

    @property
    def settings(self) -> EscalationSettings:
        """What it was made with."""
        return self._settings

    def answer(self, tensors: Array, images: npt.NDArray[np.uint8] | None) -> EscalationReply:
        """The server's logits for all samples, or why there are none.

        ``tensors``: prepared, float32 [n, *input_shape]; ``images``: the same samples as raw pixels, uint8
        [n, h, w, c], or None if they are not known: then they are recovered from the tensors where the server wants
        images. More than ``max_batch`` samples go in pieces; if one piece fails, all do.
        """
        deadline = self._clock() + self._settings.timeout_s
        unfit = self._unfit(tensors, images)
        if unfit is not None:
            return EscalationReply(None, unfit)
        if len(tensors) == 0:
            return EscalationReply(np.empty((0, len(self._class_names)), np.float32), None)
        if not self._slots.acquire(blocking=False):
            return EscalationReply(None, f"{MAX_UNDER_WAY} requests are still under way")
        if not self._breaker.allows():
            self._slots.release()
            wait_s = self._breaker.retry_in_s
            return EscalationReply(None, f"the server is left alone for {wait_s:.1f} s, since {self._last_failure}")
        return self._outcome(self._start(tensors, images, deadline))

    def close(self) -> None:
        """Send nothing from now on. May be called twice."""
        self._closed = True
        self._transport.close()

    def _unfit(self, tensors: Array, images: npt.NDArray[np.uint8] | None) -> str | None:
        """Why these samples stay here, without any fault of the server."""
        if self._settings.privacy == "never":
            return "the privacy setting is never"
        if self._closed:
            return "it was closed"
        if tensors.shape[1:] != self._input_shape:
            return f"the tensors are {list(tensors.shape[1:])}, not {list(self._input_shape)}"
        if images is None:
            return None if np.isfinite(tensors).all() else "the tensors hold NaN or infinity"
        fits = images.ndim == 4 and images.dtype == np.uint8 and len(images) == len(tensors)
        return None if fits and bool(images.size) == bool(tensors.size) else "the images are not those of the tensors"

    def _start(self, tensors: Array, images: npt.NDArray[np.uint8] | None, deadline: float) -> _Call:
        call = _Call(deadline)

        def work() -> None:
            try:
                call.output = self._ask(tensors, images, deadline)
            except Exception as error:
                call.error = error
            finally:
                self._slots.release()
                call.done.set()

        try:
            threading.Thread(target=work, name="escalation", daemon=True).start()
        except RuntimeError as error:  # no more threads here
            self._slots.release()
            call.error = error
            call.done.set()
        return call

    def _outcome(self, call: _Call) -> EscalationReply:
        """Wait for the call until its deadline, and tell the breaker how it ended."""
        answered = call.done.wait(max(0.0, call.deadline - self._clock()))
        if answered and call.output is not None:
            self._breaker.succeeded()
            return EscalationReply(call.output, None)
        self._agreement = None
        failure = _one_line(call.error) if answered else f"no answer came within {self._settings.timeout_s:g} s"
        self._last_failure = failure
        if isinstance(call.error, UsageError):
            self._breaker.trip()
        else:
            self._breaker.failed()
        return EscalationReply(None, failure)

    def _ask(self, tensors: Array, images: npt.NDArray[np.uint8] | None, deadline: float) -> Array:
        """In the worker: 1 see that the model fits, 2 send the samples piece by piece, 3 join the answers."""
        agreement = self._agreed(deadline)  # 1
        size, outputs = self._settings.max_batch, []
        for start in range(0, len(tensors), size):  # 2
            piece = slice(start, start + size)
            filled = fill(
                agreement,
                tensors[piece],
                None if images is None else images[piece],
                preprocessing=self._preprocessing,
            )
            response = self._client.infer([filled], timeout_s=self._left_s(deadline), metadata=agreement.metadata)
            outputs.append(self._logits(response.outputs[0].data, samples=len(filled.data)))
        return np.concatenate(outputs)  # 3

    def _logits(self, output: Array, *, samples: int) -> Array:
        """A piece's output [samples, classes] as float32."""
        if output.shape != (samples, len(self._class_names)):
            raise ProtocolError(f"the reply's shape is {list(output.shape)} for {samples} samples")
        with np.errstate(over="ignore"):
            logits = output.astype(np.float32, copy=False)
        if not np.isfinite(logits).all():
            raise ProtocolError("the reply's values are too large")
        return logits

    def _agreed(self, deadline: float) -> Agreement:
        known = self._agreement
        if known is not None:
            return known
        metadata = self._client.metadata(self._left_s(deadline))
        agreement = agree(metadata, class_names=self._class_names, input_shape=self._input_shape)
        self._left_s(deadline)  # what arrived too late counts for nobody
        self._agreement = agreement
        return agreement

    def _left_s(self, deadline: float) -> float:
        if self._closed:
            raise ClosedError("it was closed")
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise DeadlineError(f"no answer came within {self._settings.timeout_s:g} s")
        return left_s


def _default_transport(settings: EscalationSettings) -> Transport:
    from device_sdk.transports import make_transport

    return make_transport(settings.server, token=settings.token)


def _one_line(error: Exception | None) -> str:
    if error is None:
        return "there was no output"
    text = str(error) if isinstance(error, PathweaveError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300] or type(error).__name__
