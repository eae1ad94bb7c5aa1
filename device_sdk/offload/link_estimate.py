"""Bandwidth and round trip to a server, from requests and probes."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from device_sdk.errors import PathweaveError, TransferError
from device_sdk.offload.packing import Activations, packet_bytes
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.tail import TailClient, probe
from device_sdk.supernet.blocks import CutPoint
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Edge
from device_sdk.transports.port import Clock

_KEPT = 64  # observations
_OLDEST_S = 1.5  # older ones do not count
_LEAST = 2  # the last ones always count
_FAILURES = 2  # in a row: then the server is out of reach
_SAME_CHANGE = 0.003  # weight of "bandwidth and round trip changed alike", against an observation's 1
_MOST_CHANGE = 1e6  # of what is estimated, in either direction


@dataclass(frozen=True)
class _Observation:
    at_s: float
    size_bytes: int
    transfer_ms: float


class LinkEstimate:
    """Bandwidth and round trip of an uplink by what requests take. Thread-safe.

    Requests of one size cannot tell the two apart: then both are taken to have changed by the same factor. Requests or
    probes of several sizes tell. Two failures in a row put the server out of reach until a request succeeds.
    """

    def __init__(self, known: Uplink, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all that follows
        self._known = known
        self._seen: deque[_Observation] = deque(maxlen=_KEPT)
        self._failures = 0
        self._last_s = -math.inf

    def record(self, size_bytes: int, seconds: float, server_ms: float = 0.0) -> None:
        """A request of ``size_bytes`` was answered after ``seconds``; ``server_ms`` of them the server worked."""
        transfer_ms = max(1e3 * seconds - server_ms, 0.05e3 * seconds)
        if not (math.isfinite(transfer_ms) and transfer_ms > 0):  # a clock that was set back
            return
        with self._lock:
            self._failures = 0
            self._last_s = self._clock()
            self._seen.append(_Observation(self._last_s, max(size_bytes, 1), transfer_ms))

    def failed(self) -> None:
        """A request was not answered in time, or could not be sent."""
        with self._lock:
            self._failures += 1
            self._last_s = self._clock()
            if self._failures == _FAILURES:
                self._seen.clear()  # what was before says nothing of what comes after

    @property
    def quiet_s(self) -> float:
        """Seconds since the last request, answered or not; infinity before the first one, and after a clock jump."""
        with self._lock:
            passed_s = self._clock() - self._last_s
            return passed_s if passed_s >= 0 else math.inf

    @property
    def uplink(self) -> Uplink | None:
        """The uplink now; None while the server is out of reach."""
        with self._lock:
            if self._failures >= _FAILURES:
                return None
            now_s = self._clock()
            recent = [one for one in self._seen if 0 <= now_s - one.at_s <= _OLDEST_S]
            if len(recent) < _LEAST:
                recent = list(self._seen)[-_LEAST:]
            return _fitted(self._known, recent) if recent else self._known


def _fitted(known: Uplink, seen: list[_Observation]) -> Uplink:
    """Least squares of the factors on the known round trip and time per byte; relative errors count."""
    round_trip_ms = max(known.round_trip_ms, 0.05)
    per_byte_ms = 8 / (known.mbps * 1e3)
    rows, targets = [], []
    for one in seen:
        rows.append([round_trip_ms / one.transfer_ms, per_byte_ms * one.size_bytes / one.transfer_ms])
        targets.append(1.0)
    design, target = np.array(rows), np.array(targets)
    size = math.sqrt(float((design**2).sum()))
    design = np.vstack([design, [_SAME_CHANGE * size, -_SAME_CHANGE * size]])
    factors, *_ = np.linalg.lstsq(design, np.append(target, 0.0), rcond=None)
    first, second = (float(np.clip(factor, 1 / _MOST_CHANGE, _MOST_CHANGE)) for factor in factors)
    if factors.min() <= 0:  # one of the two explains it all
        total = design[:-1].sum(axis=1)
        first = second = float(np.clip((total @ target) / (total @ total), 1 / _MOST_CHANGE, _MOST_CHANGE))
    return Uplink(known.mbps / second, round_trip_ms * first)


_TIMEOUT_S = 1.5
_LARGE_S = 0.2  # that the larger probe may take by the estimate
_LEAST_BYTES, _MOST_BYTES = 500, 32_000


@dataclasses.dataclass(frozen=True)
class PlannedTail:
    """A tail from cut point ``position``; ``planned_ms``: its planned time besides the transfer."""

    position: int
    tail: tuple[Edge, ...]
    bits: tuple[int, ...]
    planned_ms: float


class ServerWait:
    """Measures how much longer than planned a busy server takes for a tail. Sends zeros instead of activations.

    Args:
        cut: the cut point where the tail begins; ``bundle``: the digest, and its ``version``; ``output_shape``: of the
            bundle's output.
    """

    def __init__(
        self,
        model: RemoteModel,
        tail: PlannedTail,
        *,
        cut: CutPoint,
        bundle: str,
        output_shape: Sequence[int],
        version: int | None = None,
    ) -> None:
        quick = dataclasses.replace(model, timeout_s=min(model.timeout_s, _TIMEOUT_S))
        self._client = TailClient(quick, bundle=bundle, output_shape=output_shape, version=version)
        zeros = tuple(np.zeros((1, *spec.shape), np.float32) for spec in cut.tensors)
        self._activations = Activations(bundle, tail.position, tail.tail, zeros)
        self._bits, self._planned_s = tail.bits, tail.planned_ms / 1e3
        self._size_bytes = packet_bytes(cut, tail.tail, batch=1, bits=tail.bits)

    def seconds(self, *, round_trip_s: float, per_byte_s: float, clock: Clock = time.perf_counter) -> float:
        """Seconds of wait now, at least 0. ``round_trip_s``: of an empty request; ``per_byte_s``: of the link.

        Raises:
            TransferError: the server does not run the tail now.
        """
        self._client.try_again()
        began_s = clock()
        reply = self._client.run(self._activations, bits=self._bits)
        took_s = clock() - began_s
        if reply.output is None:
            raise TransferError(reply.failure or "the tail was not run")
        return max(0.0, took_s - round_trip_s - per_byte_s * self._size_bytes - self._planned_s)

    def close(self) -> None:
        """Send nothing from now on. Idempotent."""
        self._client.close()


class LinkProbe:
    """Sends two probes of different sizes per call, and records their times in ``link``.

    ``wait``: measures the wait at a busy server, which counts as part of the round trip: all requests wait as long.

    Raises:
        UsageError: there is no transport for the server's URL.
    """

    def __init__(self, model: RemoteModel, link: LinkEstimate, wait: ServerWait | None = None) -> None:
        self._server, self._link, self._wait = model.server, link, wait
        self._transport = default_transport(model)

    def __call__(self) -> None:
        """Probe once; a failure is recorded in ``link`` too, and never raised."""
        try:
            sizes = (1, self._large_bytes())
            took_s = [probe(self._transport, self._server, size, timeout_s=_TIMEOUT_S) for size in sizes]
            wait_s = 0.0
            if self._wait is not None:
                per_byte_s = max(0.0, took_s[1] - took_s[0]) / (sizes[1] - sizes[0])
                wait_s = self._wait.seconds(round_trip_s=took_s[0], per_byte_s=per_byte_s)
            for size, seconds in zip(sizes, took_s, strict=True):
                self._link.record(size, seconds + wait_s)
        except PathweaveError:
            self._link.failed()

    def close(self) -> None:
        """Probe no more. Idempotent."""
        self._transport.close()
        if self._wait is not None:
            self._wait.close()

    def _large_bytes(self) -> int:
        uplink = self._link.uplink
        most = _LEAST_BYTES if uplink is None else int(uplink.mbps * 1e6 / 8 * _LARGE_S)
        return min(max(most, _LEAST_BYTES), _MOST_BYTES)
