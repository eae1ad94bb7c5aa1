"""What a split decision measures: how long real calls to a server take, and what few bits on the way lose."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt

from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import BITS, Activations
from device_sdk.offload.quantisation import dequantise, quantise
from device_sdk.offload.tail import TailClient
from device_sdk.policies.splitting.handling import Handling, TimedCall, fit_calls
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

_CODEC_VALUES = 65_536  # packed and unpacked to time the codec
_CODEC_ROUNDS, _CALLS = 9, 9  # whose median counts
_BATCH = 50
MOST_OF_A_BYTE = 0.9  # of the time that a byte takes by the probes; real calls may correct it downwards by so much


def codec_handling(*, rounds: int = _CODEC_ROUNDS) -> Handling:
    """The time to pack and to unpack a value on this device, in 8 bits; the server is taken to unpack as fast."""
    values = np.random.default_rng(0).standard_normal((1, 1, _CODEC_VALUES), dtype=np.float32)
    ranges, packed = quantise(values, BITS)
    packing_ms = median(_timed_ms(lambda: quantise(values, BITS)) for _ in range(rounds))
    unpacking_ms = median(
        _timed_ms(lambda: dequantise(ranges, packed, BITS, width=_CODEC_VALUES)) for _ in range(rounds)
    )
    return Handling(packing_ms / _CODEC_VALUES, unpacking_ms / _CODEC_VALUES)


def call_handling(
    client: TailClient,
    supernet: Supernet,
    bundle: str,
    costs: Sequence[SplitCost],
    codec: Handling,
    *,
    least_per_byte: float = 0.0,
) -> Handling:
    """``codec`` with what real calls take beyond ``costs``, predicted for the uplink as it is, without handling.

    Calls are made at the inner cut points with the most and the fewest bytes, with noise instead of activations. The
    first call of each is not counted. ``least_per_byte``: what a byte takes more at least, in ms; below zero where the
    uplink was measured and may be better than that. A call that fails leaves ``codec`` as it is.
    """
    inner = sorted((cost for cost in costs if cost.tail and cost.position), key=lambda cost: cost.bytes_sent)
    calls: list[TimedCall] = []
    for cost in dict.fromkeys([*inner[:1], *inner[-1:]]):
        tensors = _noise(supernet, cost.position)
        activations = Activations(bundle, cost.position, cost.tail, tensors)
        took_ms = []
        for _ in range(_CALLS + 1):
            started = time.perf_counter()
            if client.run(activations, bits=cost.bits).output is None:
                return codec
            took_ms.append((time.perf_counter() - started) * 1e3)
        values = sum(tensor.size for tensor in tensors)
        codec_ms = values * (codec.packing_ms_per_value + codec.unpacking_ms_per_value)
        predicted_ms = cost.transfer_ms + cost.server_ms + codec_ms
        calls.append(TimedCall(cost.bytes_sent, median(took_ms[1:]) - predicted_ms))
    call_ms, ms_per_byte = fit_calls(calls, least_per_byte=least_per_byte)
    return Handling(codec.packing_ms_per_value, codec.unpacking_ms_per_value, call_ms, ms_per_byte)


def _noise(supernet: Supernet, position: int) -> tuple[Array, ...]:
    random = np.random.default_rng(position)
    specs = supernet.cut_points[position].tensors
    return tuple(random.standard_normal((1, *spec.shape), dtype=np.float32) for spec in specs)


def _timed_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


class SplitAccuracy:
    """What a split loses on private samples: both parts run here, what crosses is quantised as on the way.

    Args:
        inputs: [count, *input], prepared; ``labels`` [count].
    """

    def __init__(self, workspace: Workspace, subnet: Subnet, inputs: Array, labels: npt.NDArray[np.int64]) -> None:
        self._workspace, self._subnet, self._inputs, self._labels = workspace, subnet, inputs, labels
        self._features: dict[int, tuple[Array, ...]] = {0: (inputs,)}  # of the position that was asked for last
        self.whole = self._accuracy(subnet.edges, (inputs,))

    def drop(self, cost: SplitCost) -> float:
        """The accuracy of the whole subnet minus that of the split; 0 where nothing is sent."""
        if not cost.tail:
            return 0.0
        features = self._head(cost.position)
        sent = tuple(as_received(tensor, bits) for tensor, bits in zip(features, cost.bits, strict=True))
        return self.whole - self._accuracy(cost.tail, sent)

    def _head(self, position: int) -> tuple[Array, ...]:
        if position not in self._features:
            walk = self._workspace.supernet.walk(self._subnet)
            head = tuple(edge for edge, block in walk if block.end <= position)
            self._features = {0: (self._inputs,), position: self._run(head, (self._inputs,))}
        return self._features[position]

    def _accuracy(self, edges: Sequence[Edge], tensors: tuple[Array, ...]) -> float:
        return float((self._run(edges, tensors)[-1].argmax(axis=1) == self._labels).mean())

    def _run(self, edges: Sequence[Edge], tensors: tuple[Array, ...]) -> tuple[Array, ...]:
        found = []
        with contextlib.closing(self._workspace.load_stretch(edges, batch=_BATCH)) as stretch:
            for at in range(0, len(tensors[0]), _BATCH):
                found.append(stretch.run([tensor[at : at + _BATCH] for tensor in tensors]))
        return tuple(np.concatenate(one) for one in zip(*found, strict=True))


def as_received(tensor: Array, bits: int) -> Array:
    """``tensor`` [batch, ...] as the server gets it in ``bits`` per value, one range per sample."""
    flat = np.ascontiguousarray(tensor).reshape(len(tensor), 1, -1)
    ranges, packed = quantise(flat, bits)
    return dequantise(ranges, packed, bits, width=flat.shape[2]).reshape(tensor.shape)
