"""Measurements for a split: real calls, and what few bits or JPEGs lose."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from statistics import mean, median
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.data.image_files import QUALITY, decode_jpeg, encode_jpeg
from device_sdk.data.inputs import Inputs, as_inputs, batches
from device_sdk.data.preprocessing import Preprocessing, fit_image, prepare
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import BITS, Activations, can_travel, packet_bytes
from device_sdk.offload.quantisation import dequantise, quantise
from device_sdk.offload.tail import TailClient
from device_sdk.policies.deciding.promises import caution_of
from device_sdk.policies.measured_splits.packet_coding import Codings, as_received, packet_codings
from device_sdk.policies.splitting.path_splits import (
    Handling,
    JpegCoding,
    PacketCoding,
    SplitCost,
    TimedCall,
    fit_calls,
)
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import Edge, Subnet, without_homes
from device_sdk.supernet.supernet import Supernet
from device_sdk.tasks import AnswerTask
from device_sdk.tasks.port import Targets

_SIZED = 32  # images, about, that are coded to know their mean size and their times

Pixels = npt.NDArray[np.uint8]
Made = TypeVar("Made")


class JpegInputs:
    """``images``, uint8 [height, width, channels] each, as ``NAME:jpeg`` at a server takes them.

    ``input_shape``: [channels, height, width] of the model's own input, to which the device fits an image first.
    """

    def __init__(
        self,
        images: Sequence[Pixels],
        preprocessing: Preprocessing,
        *,
        input_shape: tuple[int, int, int],
        quality: int = QUALITY,
    ) -> None:
        self._images, self._preprocessing = images, preprocessing
        self._shape, self._quality = input_shape, quality

    def coding(self) -> JpegCoding:
        """Mean size and median times of some of the images; the server is taken to decode as fast as this device."""
        images = self._images[:: max(1, len(self._images) // _SIZED)]
        encoded, encoding_ms = zip(*(_timed(partial(self._encoded, image)) for image in images), strict=True)
        decoding_ms = [_timed(partial(self._decoded, data))[1] for data in encoded]
        fitted, fitting_ms = zip(*(_timed(partial(self._fitted, image)) for image in images), strict=True)
        preparing_ms = [_timed(partial(self._prepared, pixels))[1] for pixels in fitted]
        pixels = JpegCoding(math.prod(self._shape), median(fitting_ms), median(preparing_ms))
        return JpegCoding(round(mean(map(len, encoded))), median(encoding_ms), median(decoding_ms), pixels)

    def received(self, batch: int, *, as_pixels: bool = False) -> Iterator[Array]:
        """The images as the server's model gets them, in batches [batch, *input]; ``as_pixels``: without JPEG."""
        for at in range(0, len(self._images), batch):
            some = self._images[at : at + batch]
            yield np.concatenate(
                [self._prepared(one) if as_pixels else self._decoded(self._encoded(one)) for one in some]
            )

    def _fitted(self, image: Pixels) -> Pixels:
        return fit_image(image, self._preprocessing, size=self._shape[1:])

    def _encoded(self, image: Pixels) -> bytes:
        return encode_jpeg(self._fitted(image), quality=self._quality)

    def _decoded(self, data: bytes) -> Array:
        return self._prepared(decode_jpeg(data, channels=self._preprocessing.channels))

    def _prepared(self, pixels: Pixels) -> Array:
        return prepare(pixels, self._preprocessing, input_shape=self._shape)


def _timed(make: Callable[[], Made]) -> tuple[Made, float]:
    started = time.perf_counter()
    made = make()
    return made, (time.perf_counter() - started) * 1e3


_CODEC_VALUES = 65_536  # packed and unpacked to time the codec
_CODEC_ROUNDS, _CALLS = 9, 5  # whose median counts; calls of a turn
_FEW_CALLS, _TURN_MS = 2, 2_000.0  # where calls are slow, a turn has fewer, and takes little longer than this
_BATCH = 50
_KEPT_BYTES = 64_000_000  # of features behind one head
_MEASURED = 16  # samples, spread over all, of which some are coded
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
    heads: Workspace | None = None,
    subnet: Subnet | None = None,
    turn_ms: float = _TURN_MS,
) -> Handling:
    """``codec`` with the time of real requests beyond ``costs``, predicted for the uplink as it is, without handling.

    Requests are made at the inner cut points with the most and the fewest bytes and at one between them, there and
    back, so that a drift of the machine is shared out. Cut points where two calls would take longer than ``turn_ms``
    are left out. With ``heads``, the head of ``subnet`` runs on noise before each call, as in use: profiles repeat a
    part in a warm cache, whereas both sides of a split have waited for each other. Without, noise stands for the
    activations. The first call of each turn is not counted; a turn that takes long has fewer calls.
    ``least_per_byte``: lower limit of the time added per byte, in ms; below zero where the uplink was measured and may
    be better than that. A call that fails leaves ``codec`` as it is.
    """
    inner = sorted((cost for cost in costs if cost.tail and cost.position), key=lambda cost: cost.bytes_sent)
    inner = [cost for cost in inner if cost.transfer_ms <= turn_ms / 2] or inner[:1]
    chosen = list(dict.fromkeys([*inner[:1], *inner[len(inner) // 2 : len(inner) // 2 + 1], *inner[-1:]]))
    took_ms: dict[SplitCost, list[float]] = {cost: [] for cost in chosen}
    for cost in (*chosen, *reversed(chosen)):
        with _head(heads, supernet, subnet, cost) as head:
            found = _timed_requests(client, bundle, cost, head, turn_ms)
        if found is None:
            return codec
        took_ms[cost] += found
    calls = [_timed_call(supernet, cost, took_ms[cost], codec, with_head=heads is not None) for cost in chosen]
    call_ms, ms_per_byte = fit_calls(calls, least_per_byte=least_per_byte)
    return Handling(codec.packing_ms_per_value, codec.unpacking_ms_per_value, call_ms, ms_per_byte)


@contextlib.contextmanager
def _head(
    heads: Workspace | None, supernet: Supernet, subnet: Subnet | None, cost: SplitCost
) -> Iterator[Callable[[], tuple[Array, ...]]]:
    """Yields a function for the activations at the cut point of ``cost``: computed, or noise without ``heads``."""
    if heads is None or subnet is None:
        noise = _noise(supernet, cost.position)
        yield lambda: noise
        return
    edges = tuple(edge for edge, block in supernet.walk(subnet) if block.end <= cost.position)
    inputs = _noise(supernet, 0, input_size=subnet.input_size)
    with contextlib.closing(heads.load_stretch(edges, batch=1)) as stretch:
        yield lambda: tuple(stretch.run(inputs))


def _timed_requests(
    client: TailClient, bundle: str, cost: SplitCost, head: Callable[[], tuple[Array, ...]], turn_ms: float
) -> list[float] | None:
    """Latencies of some requests in ms, of fewer if they are slow; None if the server did not answer one."""
    took_ms: list[float] = []
    while len(took_ms) <= _CALLS and (len(took_ms) <= _FEW_CALLS or sum(took_ms) < turn_ms):
        started = time.perf_counter()
        activations = Activations(bundle, cost.position, cost.tail, head())
        if client.run(activations, bits=cost.bits).output is None:
            return None
        took_ms.append((time.perf_counter() - started) * 1e3)
    return took_ms[1:]


def _timed_call(
    supernet: Supernet, cost: SplitCost, took_ms: Sequence[float], codec: Handling, *, with_head: bool
) -> TimedCall:
    values = sum(spec.size for spec in supernet.cut_points[cost.position].tensors)
    predicted_ms = cost.transfer_ms + cost.server_ms + (cost.device_ms if with_head else 0.0)
    predicted_ms += values * (codec.packing_ms_per_value + codec.unpacking_ms_per_value)
    return TimedCall(cost.bytes_sent, median(took_ms) - predicted_ms, median(took_ms))


def _noise(supernet: Supernet, position: int, *, input_size: tuple[int, ...] = ()) -> tuple[Array, ...]:
    random = np.random.default_rng(position)
    shapes = [spec.shape for spec in supernet.cut_points[position].tensors]
    if input_size:
        shapes = [(shapes[0][0], *input_size)]
    return tuple(random.standard_normal((1, *shape), dtype=np.float32) for shape in shapes)


def _timed_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


class _Loss(NamedTuple):
    """Loss of a way: its drop in the score, the distance of that from its bound, and by single samples [count]."""

    drop: float
    caution: float
    differences: npt.NDArray[np.float64]


class SplitScore:
    """Drop in the score by splits on private samples: both parts run here, with tensors between quantised as if sent.

    ``whole``: the score of the subnet as it is. Samples are prepared batch by batch; features at the cut point that was
    looked at last are kept as far as they take little memory.

    Args:
        inputs: samples, or an array [count, *input] of prepared ones; ``targets`` [count, …] as ``score`` takes them;
            None: the subnet's answers stand in.
        jpegs: the same samples as JPEGs, where the input may be sent so.
        certainty: probability with which the drop of the way that is chosen stays below its bound on new samples.
    """

    def __init__(
        self,
        workspace: Workspace,
        subnet: Subnet,
        inputs: Inputs | Array,
        targets: Targets | None,
        score: AnswerTask,
        *,
        jpegs: JpegInputs | None = None,
        certainty: float | None = None,
    ) -> None:
        self._workspace, self._subnet, self._inputs, self._score = workspace, subnet, as_inputs(inputs), score
        self._jpegs, self._certainty = jpegs, certainty
        self._kept: tuple[tuple[Edge, ...], list[tuple[Array, ...]]] | None = None  # features behind a head
        answers = self._answers(subnet.edges, self._given())
        self._targets = score.stand_in(answers) if targets is None else targets
        self.whole = score.of(answers, self._targets)
        self._each = self._by_sample(answers)
        self._measured: dict[Hashable, _Loss] = {}
        self._sent: list[Codings] | None = None

    def drop(self, cost: SplitCost) -> float:
        """The score of the whole subnet minus that of the split; 0 where nothing differs. A way is measured once.

        Pixels of the model's size differ in nothing: the server prepares them as the device does.
        """
        if cost.head == self._subnet.edges or (cost.sends == "images" and cost.tail == self._subnet.edges):
            return 0.0
        if _key(cost) not in self._measured:
            self._measured[_key(cost)] = self._measure(cost)
        return self._measured[_key(cost)].drop

    def caution(self, cost: SplitCost) -> float:
        """The distance from the drop to its bound (``caution_of``); 0 where nothing differs, or was not measured."""
        found = self._measured.get(_key(cost))
        return 0.0 if found is None else found.caution

    def differences(self, cost: SplitCost) -> npt.NDArray[np.float64]:
        """Scores of single samples: of the whole subnet, minus those of the split [count]. Measures it."""
        self.drop(cost)
        found = self._measured.get(_key(cost))
        return np.zeros(len(self._each)) if found is None else found.differences

    def _measure(self, cost: SplitCost) -> _Loss:
        if cost.sends != "activations":
            assert self._jpegs is not None, "the input is sent as an image only where there are images"
            received = self._jpegs.received(_BATCH, as_pixels=cost.sends == "images")
            answers = self._answers(cost.tail, ((some,) for some in received))
        elif cost.tail:
            sent = (_as_received(features, cost) for features in self._after(cost.head))
            answers = self._answers(cost.tail, sent)
        else:
            answers = np.concatenate([features[-1] for features in self._after(cost.head)])
        differences = self._each - self._by_sample(answers)
        caution = caution_of(differences, self._certainty, turn=len(self._measured) + 1)
        return _Loss(self.whole - self._score.of(answers, self._targets), caution, differences)

    def _by_sample(self, answers: Array) -> npt.NDArray[np.float64]:
        """The score of each sample alone: [count]."""
        pairs = ((answers[at : at + 1], self._targets[at : at + 1]) for at in range(len(answers)))
        return np.array([self._score.of(*pair) for pair in pairs])

    def coding(self, position: int, bits: int, per_channel: bool) -> PacketCoding | None:
        """Costs of the tensors sent at ``position``, on some of the samples; None where the subnet does not pass."""
        if self._sent is None:
            self._sent = [packet_codings(tensors) for tensors in self._live()]
        return self._sent[position].get((bits, per_channel))

    def _given(self) -> Iterator[tuple[Array, ...]]:
        return ((some,) for some in batches(self._inputs, _BATCH, self._subnet.input_size))

    def _live(self) -> Iterator[tuple[Array, ...]]:
        """The tensors at each cut point along the subnet and at bottlenecks beside it; nothing at others."""
        supernet = self._workspace.supernet
        ends = {block.end: (edge, block.start) for edge, block in supernet.walk(self._subnet)}
        for position in supernet.bottlenecks:
            path = supernet.through(self._subnet, position)
            walk = () if path is None else supernet.walk(path)
            ends |= {block.end: (edge, block.start) for edge, block in walk if block.end == position}
        last_use = {start: end for end, (_, start) in sorted(ends.items())}
        some = np.unique(np.linspace(0, len(self._inputs) - 1, min(_MEASURED, len(self._inputs)), dtype=int))
        live: dict[int, tuple[Array, ...]] = {0: (self._inputs.take(some, self._subnet.input_size),)}
        for position in range(len(supernet.cut_points)):
            if position in ends:
                edge, start = ends[position]
                live[position] = run_all(self._workspace, (edge,), live[start])
            yield live.get(position, ())
            live = {place: found for place, found in live.items() if last_use.get(place, 0) > position}

    def _answers(self, edges: Sequence[Edge], tensors: Iterable[tuple[Array, ...]]) -> Array:
        """The last output of ``edges`` for all batches."""
        return np.concatenate([found[-1] for found in _run(self._workspace, edges, tensors)])

    def _after(self, head: tuple[Edge, ...]) -> Iterable[tuple[Array, ...]]:
        """Features behind ``head``, batch by batch."""
        if not head:
            return self._given()
        if self._kept is not None and self._kept[0] == head:
            return self._kept[1]
        return self._computed(head)

    def _computed(self, head: tuple[Edge, ...]) -> Iterator[tuple[Array, ...]]:
        kept, size = list[tuple[Array, ...]](), 0
        self._kept = None
        for features in _run(self._workspace, head, self._given()):
            size += sum(one.nbytes for one in features)
            if size <= _KEPT_BYTES:
                kept.append(features)
            yield features
        if size <= _KEPT_BYTES:
            self._kept = (head, kept)


def _key(cost: SplitCost) -> Hashable:
    return cost.head, cost.tail, cost.bits, cost.per_channel, cost.sends


def _run(
    workspace: Workspace, edges: Sequence[Edge], tensors: Iterable[tuple[Array, ...]]
) -> Iterator[tuple[Array, ...]]:
    with contextlib.closing(workspace.load_stretch(edges, batch=_BATCH)) as stretch:
        for some in tensors:
            yield tuple(stretch.run(list(some)))


def _as_received(tensors: Sequence[Array], cost: SplitCost) -> tuple[Array, ...]:
    return tuple(as_received(tensor, one, cost.per_channel) for tensor, one in zip(tensors, cost.bits, strict=True))


def run_all(workspace: Workspace, edges: Sequence[Edge], tensors: tuple[Array, ...]) -> tuple[Array, ...]:
    """Outputs of ``edges`` for all samples, tensors [count, ...], computed batch by batch."""
    parts = (tuple(one[at : at + _BATCH] for one in tensors) for at in range(0, len(tensors[0]), _BATCH))
    found = list(_run(workspace, edges, parts))
    return tuple(np.concatenate(one) for one in zip(*found, strict=True))


WIDTHS = (6, 4, 2)  # bits; 8 lose nothing that counts
_TOGETHER = 128  # samples whose features are in memory at once
Received = dict[tuple[Subnet, int, tuple[int, ...]], Array]


def narrow_cuts(supernet: Supernet, subnet: Subnet) -> list[tuple[int, tuple[Edge, ...]]]:
    """Inner cut points along ``subnet`` at which fewer bytes travel than at all before, with the edges behind them.

    Source: the filter of Auto-Split Eq. 6.
    """
    found: list[tuple[int, tuple[Edge, ...]]] = []
    least = None
    for number, (_, block) in list(enumerate(supernet.walk(subnet)))[1:]:
        cut, tail = supernet.cut_points[block.start], without_homes(subnet.edges[number:])
        if not can_travel(cut):
            continue
        size = packet_bytes(cut, tail, batch=1)
        if least is None or size < least:
            least = size
            found.append((block.start, tail))
    return found


def few_bits_ms(supernet: Supernet, subnet: Subnet, costs: CostModel) -> float:
    """Approximate time of ``answers_in_few_bits`` for one sample."""
    tails_ms = sum(costs.latency_along_ms(tail) for _, tail in narrow_cuts(supernet, subnet))
    return costs.latency_ms(subnet) + len(WIDTHS) * tails_ms


def answers_in_few_bits(workspace: Workspace, subnet: Subnet, inputs: Inputs | Array) -> Received:
    """Logits [count, classes] of ``subnet`` on ``inputs``, by narrow cut point and bits on the way."""
    found = [_answers(workspace, subnet, some) for some in batches(as_inputs(inputs), _TOGETHER)]
    return {key: np.concatenate([one[key] for one in found]) for key in found[0]}


def _answers(workspace: Workspace, subnet: Subnet, inputs: Array) -> Received:
    """The same for a few samples [count, *input]."""
    found: Received = {}
    features: tuple[Array, ...] = (inputs,)
    done = 0
    for position, tail in narrow_cuts(workspace.supernet, subnet):
        start = len(subnet.edges) - len(tail)
        features = run_all(workspace, subnet.edges[done:start], features)
        done = start
        for bits in WIDTHS:
            sent = tuple(as_received(tensor, bits) for tensor in features)
            found[subnet, position, (bits,) * len(sent)] = run_all(workspace, tail, sent)[-1]
    return found
