"""What a split decision measures: how long real calls to a server take, and what few bits on the way lose."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np

from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import BITS, Activations
from device_sdk.offload.quantisation import MAX_BITS, dequantise, quantise
from device_sdk.offload.tail import TailClient
from device_sdk.policies.scores import Score, Targets
from device_sdk.policies.splitting.handling import Handling, TimedCall, fit_calls
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.policies.splitting.quantisation_error import relative_error
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

_CODEC_VALUES = 65_536  # packed and unpacked to time the codec
_CODEC_ROUNDS, _CALLS = 9, 9  # whose median counts
_BATCH = 50
_MEASURED = 64  # samples for the error of what crosses
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


class SplitScore:
    """What a split loses on private samples: both parts run here, what crosses is quantised as on the way.

    ``whole``: the score of the subnet as it is.

    Args:
        inputs: [count, *input], prepared; ``targets`` [count, …] as ``score`` takes them; None: what the subnet answers
            stands in.
    """

    def __init__(
        self, workspace: Workspace, subnet: Subnet, inputs: Array, targets: Targets | None, score: Score
    ) -> None:
        self._workspace, self._subnet, self._inputs, self._score = workspace, subnet, inputs, score
        self._head: tuple[tuple[Edge, ...], tuple[Array, ...]] = ((), (inputs,))  # that was asked for last
        answers = self._run(subnet.edges, (inputs,))[-1]
        self._targets = score.stand_in(answers) if targets is None else targets
        self.whole = score.of(answers, self._targets)
        self._sent: list[dict[int, float]] | None = None

    def drop(self, cost: SplitCost) -> float:
        """The score of the whole subnet minus that of the split; 0 where nothing differs."""
        if cost.head == self._subnet.edges:
            return 0.0
        features = self._after(cost.head)
        if cost.tail:
            sent = tuple(as_received(tensor, bits) for tensor, bits in zip(features, cost.bits, strict=True))
            features = self._run(cost.tail, sent)
        return self.whole - self._score.of(features[-1], self._targets)

    def sent_error(self, position: int, bits: int) -> float:
        """Noise to signal of what crosses at ``position`` in ``bits``, on some of the samples."""
        if self._sent is None:
            self._sent = [_noise_by_bits(tensors) for tensors in self._live()]
        return self._sent[position].get(bits, 0.0)

    def _live(self) -> Iterator[tuple[Array, ...]]:
        """The tensors at each cut point along the subnet; nothing at those that it does not pass."""
        ends = {block.end: edge for edge, block in self._workspace.supernet.walk(self._subnet)}
        live: tuple[Array, ...] = (self._inputs[:_MEASURED],)
        for position in range(len(self._workspace.supernet.cut_points)):
            if position in ends:
                live = self._run((ends[position],), live)
            yield live if position in ends or not position else ()

    def _after(self, head: tuple[Edge, ...]) -> tuple[Array, ...]:
        if not head:
            return (self._inputs,)
        if self._head[0] != head:
            self._head = (head, self._run(head, (self._inputs,)))
        return self._head[1]

    def _run(self, edges: Sequence[Edge], tensors: tuple[Array, ...]) -> tuple[Array, ...]:
        found = []
        with contextlib.closing(self._workspace.load_stretch(edges, batch=_BATCH)) as stretch:
            for at in range(0, len(tensors[0]), _BATCH):
                found.append(stretch.run([tensor[at : at + _BATCH] for tensor in tensors]))
        return tuple(np.concatenate(one) for one in zip(*found, strict=True))


def _noise_by_bits(tensors: Sequence[Array]) -> dict[int, float]:
    """Noise to signal in 1 to 8 bits, summed over ``tensors``."""
    travelling = [tensor for tensor in tensors if tensor.dtype == np.float32]
    return {
        bits: sum(relative_error(as_received(tensor, bits), tensor) for tensor in travelling)
        for bits in range(1, MAX_BITS + 1)
    }


def as_received(tensor: Array, bits: int) -> Array:
    """``tensor`` [batch, ...] as the server gets it in ``bits`` per value, one range per sample."""
    flat = np.ascontiguousarray(tensor).reshape(len(tensor), 1, -1)
    ranges, packed = quantise(flat, bits)
    return dequantise(ranges, packed, bits, width=flat.shape[2]).reshape(tensor.shape)
