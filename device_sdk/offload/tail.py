"""Tails at a server: the rest of a path, and the facts that splits are planned by."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import quote

import numpy as np

from device_sdk.errors import ProtocolError, UsageError
from device_sdk.files.atomic import decode_json
from device_sdk.offload.client import ModelMetadata
from device_sdk.offload.open_inference import NamedTensor
from device_sdk.offload.packing import Activations, pack
from device_sdk.offload.remote_calls import (
    CircuitBreaker,
    RemoteCalls,
    RemoteReply,
    checked_logits,
    default_transport,
    make_client,
)
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.profiling.profile import Profile
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import Uplink
from device_sdk.transports.port import Clock, Deadlines, Transport, base, read_all, require_success

_PROFILE_DEADLINES = Deadlines(idle_s=120.0, total_s=120.0)  # the first request makes the server measure itself
_PROFILE_MAX_BYTES = 16_000_000
_PROBE_DEADLINES = Deadlines(idle_s=30.0, total_s=60.0)
_SMALL, _LARGE = 1, 32_000  # bytes of a probe
_ROUNDS = 9


def server_profile(transport: Transport, server: str, bundle: str) -> Profile:
    """The server's profile of ``bundle``.

    Raises:
        TransferError: the request failed.
    """
    url = f"{base(server)}/v1/bundles/{quote(bundle, safe='')}/profile"
    with transport.send("GET", url, deadlines=_PROFILE_DEADLINES, max_bytes=_PROFILE_MAX_BYTES) as reply:
        require_success(reply, what="the server's profile")
        data = read_all(reply)
    try:
        return decode_json(data, Profile)
    except ValueError as error:
        raise ProtocolError(f"the server's profile: {error}") from error


def probe(transport: Transport, server: str, size_bytes: int, *, timeout_s: float) -> float:
    """Send ``size_bytes`` and have their arrival confirmed; the seconds that it took.

    Raises:
        TransferError: no confirmation in time.
    """
    deadlines = Deadlines(idle_s=timeout_s, total_s=timeout_s)
    return _probe(transport, f"{base(server)}/v1/probe", size_bytes, deadlines)


def measure_uplink(transport: Transport, server: str) -> Uplink:
    """Bandwidth and round-trip time to ``server``, from the medians of probes of two sizes.

    Raises:
        TransferError: a probe failed.
    """
    url = f"{base(server)}/v1/probe"
    _probe(transport, url, _SMALL)  # opens the connection
    small_s = float(np.median([_probe(transport, url, _SMALL) for _ in range(_ROUNDS)]))
    large_s = float(np.median([_probe(transport, url, _LARGE) for _ in range(_ROUNDS)]))
    seconds = max(large_s - small_s, 1e-6)
    return Uplink(mbps=8 * (_LARGE - _SMALL) / seconds / 1e6, round_trip_ms=small_s * 1e3)


def _probe(transport: Transport, url: str, size: int, deadlines: Deadlines = _PROBE_DEADLINES) -> float:
    started = time.perf_counter()
    with transport.send("POST", url, body=bytes(size), deadlines=deadlines, max_bytes=1000) as reply:
        require_success(reply, what="a probe")
        read_all(reply)
    return time.perf_counter() - started


TAIL = ":tail"  # suffix of the bundle's name in the name of the model that runs tails
PACKET_SHAPE = (1, -1)  # one packet of any length: not a batch


def runs_tails(model: str) -> bool:
    """True if a server's model of this name runs tails."""
    return model.endswith(TAIL)


class TailClient:
    """Runs tails of ``bundle`` (its digest) at a server. Never raises, never exceeds the time-out.

    ``version``: of the bundle: a server in a rollout has several. ``output_shape``: of the bundle's output, without the
    batch.

    Raises:
        UsageError: there is no transport for the server's URL.
    """

    def __init__(
        self,
        model: RemoteModel,
        *,
        bundle: str,
        output_shape: Sequence[int],
        version: int | None = None,
        transport: Transport | None = None,
        breaker: CircuitBreaker | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._model = model
        self._bundle = bundle
        self._output_shape = tuple(output_shape)
        self._transport = transport or default_transport(model)
        self._client = make_client(model, self._transport, output_shape=output_shape, clock=clock, version=version)
        self._calls = RemoteCalls(timeout_s=model.timeout_s, breaker=breaker, clock=clock)
        self._metadata: ModelMetadata | None = None

    @property
    def model(self) -> RemoteModel:
        """The remote model."""
        return self._model

    @property
    def ready(self) -> bool:
        """True if a request would be sent now: not in the pause after failures, nor after ``close``."""
        return self._calls.ready

    def run(
        self,
        activations: Activations,
        *,
        bits: Sequence[int] | None = None,
        per_channel: bool = False,
        compress: bool = False,
    ) -> RemoteReply:
        """The output [batch, *output_shape] of the tail of ``activations``, or the reason of the failure.

        ``bits`` per value, for each tensor sent; by default 8. ``per_channel``, ``compress``: as for ``pack``.
        """
        if self._model.privacy == "never" or (self._model.privacy != "inputs" and activations.position == 0):
            sent = "the input" if activations.position == 0 else "activations"
            return RemoteReply(None, f"the privacy setting {self._model.privacy} forbids to send {sent}")
        packed = partial(pack, activations, bits=bits, per_channel=per_channel, compress=compress)
        reply = self._calls.run(lambda deadline: self._ask(packed, len(activations.tensors[0]), deadline))
        if reply.output is None:
            self._metadata = None
        return reply

    def try_again(self) -> None:
        """End the pause after failures."""
        self._calls.try_again()

    def close(self) -> None:
        """Send nothing from now on. Idempotent."""
        self._calls.close()
        self._transport.close()

    def _ask(self, packed: Callable[[], bytes], samples: int, deadline: float) -> Array:
        metadata = self._fitting(deadline)
        packet = np.frombuffer(packed(), np.uint8)[np.newaxis]
        response = self._client.infer(
            [NamedTensor(metadata.inputs[0].name, packet)],
            timeout_s=self._calls.left_s(deadline),
            metadata=metadata,
        )
        return checked_logits(response.outputs[0].data, samples=samples, shape=self._output_shape)

    def _fitting(self, deadline: float) -> ModelMetadata:
        """The metadata of the server's model, checked to run tails of this bundle."""
        metadata = self._metadata
        if metadata is not None:
            return metadata
        metadata = self._client.metadata(self._calls.left_s(deadline))
        if metadata.bundle != self._bundle:
            raise UsageError("the server has another version of the bundle", hint="fetch the bundle again")
        inputs = [(tensor.datatype, tensor.shape) for tensor in metadata.inputs]
        if inputs != [("UINT8", PACKET_SHAPE)] or len(metadata.outputs) != 1:
            raise UsageError("the server's model does not run tails", hint=f"its name ends in {TAIL}")
        self._metadata = metadata
        return metadata
