"""Estimate of the link to a server, updated by real requests and probes. Pure except for the injected clock."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from device_sdk.supernet.cost import Uplink
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
