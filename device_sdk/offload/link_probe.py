"""Small requests that keep an estimate of the link to a server up to date while nothing else is sent."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from device_sdk.errors import PathweaveError, TransferError
from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.offload.packing import Activations, packet_bytes
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.server_facts import probe
from device_sdk.offload.tail import TailClient
from device_sdk.supernet.blocks import CutPoint
from device_sdk.supernet.plan import Edge
from device_sdk.transports.port import Clock

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
        cut: the cut point where the tail begins; ``bundle``: the digest; ``output_shape``: of the bundle's output.
    """

    def __init__(
        self, model: RemoteModel, tail: PlannedTail, *, cut: CutPoint, bundle: str, output_shape: Sequence[int]
    ) -> None:
        quick = dataclasses.replace(model, timeout_s=min(model.timeout_s, _TIMEOUT_S))
        self._client = TailClient(quick, bundle=bundle, output_shape=output_shape)
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
