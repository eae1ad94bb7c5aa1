"""Problem of splitting with mixed precision, and costs of its solutions (Auto-Split §3, Eq. 1–5). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.auto_split.hardware import Bits, Number, tensor_bits
from benchmarks.auto_split.layer_graph import LayerGraph, packed_size
from device_sdk.errors import UsageError
from device_sdk.supernet.cost import Uplink

WIDTHS = (2, 4, 6, 8, 16)
ErrorByBits = Mapping[int, float]


class LayerLatency(Protocol):
    """Source of the latencies of layers: measured, or computed from a description of hardware."""

    def layer_ms(self, graph: LayerGraph, index: int, weight_bits: Bits, input_bits: Bits, output_bits: Bits) -> Number:
        """Latency of layer ``index``; bits may be arrays: [choices], and [choices, inputs] for ``input_bits``."""


@dataclass(frozen=True)
class Link:
    """Link for activations: ``uplink``, bytes that the protocol adds to a packet, and the codec's speed per value."""

    uplink: Uplink
    overhead_bytes: int = 0
    packing_ms_per_value: float = 0.0
    unpacking_ms_per_value: float = 0.0

    def sent_ms(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """``uplink.transfer_ms`` of many sizes in bytes."""
        idle_ms = self.uplink.transfer_ms(0)
        per_byte_ms = (self.uplink.transfer_ms(1_000_000) - idle_ms) / 1e6
        return np.asarray(idle_ms + sizes * per_byte_ms, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class SplitProblem:
    """A network, both sides, the link between them, and limits.

    ``server_ms``: latency of each layer at the server, at the original precision. ``weight_errors`` by layer and
    ``activation_errors`` by tensor (the network's input first): quantisation error at each number of bits; what is
    missing has no error. ``widths``: of weights and activations on the device; ``sent_widths``: of tensors sent.
    ``memory_bytes`` bounds weights plus working set (Eq. 3), ``max_error`` the sum of errors (Eq. 4).

    Raises:
        UsageError: lists of other lengths than the network's, no widths, or a limit that is not a number.
    """

    graph: LayerGraph
    device: LayerLatency
    server_ms: tuple[float, ...]
    link: Link
    weight_errors: tuple[ErrorByBits, ...]
    activation_errors: tuple[ErrorByBits, ...]
    widths: tuple[int, ...] = WIDTHS
    sent_widths: tuple[int, ...] = WIDTHS
    memory_bytes: float = math.inf
    max_error: float = math.inf

    def __post_init__(self) -> None:
        count = self.graph.count
        if (len(self.server_ms), len(self.weight_errors), len(self.activation_errors)) != (count, count, count + 1):
            raise UsageError("latencies and errors are not given for every layer and tensor")
        if not self.widths or not self.sent_widths or min(*self.widths, *self.sent_widths) < 1:
            raise UsageError("weights and activations need widths of at least one bit")
        if math.isnan(self.memory_bytes) or math.isnan(self.max_error):
            raise UsageError("a limit of the split is not a number")

    @cached_property
    def server_rest_ms(self) -> tuple[float, ...]:
        """Latency of the server's part, by position."""
        rest = np.append(np.cumsum(self.server_ms[::-1])[::-1], 0.0)
        return tuple(map(float, rest))

    def weight_error(self, index: int, bits: int) -> float:
        """Error of the weights of layer ``index`` in ``bits``."""
        return self.weight_errors[index - 1].get(bits, 0.0)

    def activation_error(self, tensor: int, bits: int) -> float:
        """Error of a tensor in ``bits``; the network's input has none."""
        return 0.0 if tensor == 0 else self.activation_errors[tensor].get(bits, 0.0)

    def sent_error(self, tensor: int, computed_bits: int, sent_bits: int) -> float:
        """Error added by sending a tensor in fewer bits than it was computed in; never negative."""
        if sent_bits >= computed_bits:
            return 0.0
        computed = self.activation_error(tensor, computed_bits)
        return max(0.0, self.activation_error(tensor, sent_bits) - computed)


@dataclass(frozen=True, kw_only=True)
class SplitSolution:
    """A split with its bits and costs.

    ``weight_bits`` and ``activation_bits``: of layers 1 to ``position`` (0 for a layer without weights);
    ``sent_bits``: of the tensors that cross. ``error``: the sum of quantisation errors on the device and in transit.
    """

    position: int
    layers: int
    weight_bits: tuple[int, ...] = ()
    activation_bits: tuple[int, ...] = ()
    sent_bits: tuple[int, ...] = ()
    device_ms: float = 0.0
    packing_ms: float = 0.0
    transfer_ms: float = 0.0
    unpacking_ms: float = 0.0
    server_ms: float = 0.0
    bytes_sent: int = 0
    weight_bytes: int = 0
    working_bytes: int = 0
    error: float = 0.0

    @property
    def latency_ms(self) -> float:
        """End to end (Eq. 1)."""
        return self.device_ms + self.packing_ms + self.transfer_ms + self.unpacking_ms + self.server_ms

    @property
    def peak_bytes(self) -> int:
        """Weights plus the largest working set on the device (Eq. 3)."""
        return self.weight_bytes + self.working_bytes

    @property
    def kind(self) -> str:
        """``server``, ``device`` or ``split``."""
        return "server" if self.position == 0 else "device" if self.position == self.layers else "split"


def evaluate(
    problem: SplitProblem,
    position: int,
    weight_bits: Sequence[int] = (),
    activation_bits: Sequence[int] = (),
    sent_bits: Sequence[int] = (),
) -> SplitSolution:
    """Cost of a choice, which may break the limits.

    At position 0 the input travels as it is, at the last position nothing does. A tensor is never sent in more bits
    than it was computed in; the network's input is sent in its own bits.
    """
    return with_sent_bits(problem, device_part(problem, position, weight_bits, activation_bits), sent_bits)


def device_part(
    problem: SplitProblem, position: int, weight_bits: Sequence[int], activation_bits: Sequence[int]
) -> SplitSolution:
    """Layers 1 to ``position`` on the device, without the transfer to the server."""
    graph = problem.graph
    bits = (graph.input_bits, *activation_bits)
    device_ms, weight_bytes, working_bytes, error = 0.0, 0, 0, 0.0
    for index in range(1, position + 1):
        own = weight_bits[index - 1]
        device_ms += float(problem.device.layer_ms(graph, index, own, tensor_bits(graph, index, bits), bits[index]))
        weight_bytes += packed_size(graph.layer(index).weights, own)
        working_bytes = max(working_bytes, graph.working_bytes(index, bits))
        error += problem.weight_error(index, own) + problem.activation_error(index, bits[index])
    return SplitSolution(
        position=position,
        layers=graph.count,
        weight_bits=tuple(weight_bits),
        activation_bits=tuple(activation_bits),
        device_ms=device_ms,
        server_ms=problem.server_rest_ms[position],
        weight_bytes=weight_bytes,
        working_bytes=working_bytes,
        error=error,
    )


def with_sent_bits(problem: SplitProblem, device: SplitSolution, sent_bits: Sequence[int]) -> SplitSolution:
    """``device``, from ``device_part``, with the tensors that cross sent in ``sent_bits``."""
    graph, link, position = problem.graph, problem.link, device.position
    crossing = graph.crossing(position) if position < graph.count else ()
    if not crossing:
        return device
    computed = (graph.input_bits, *device.activation_bits)
    sent = tuple(
        min(width, computed[tensor]) if tensor else graph.input_bits
        for tensor, width in zip(crossing, sent_bits or (graph.input_bits,) * len(crossing), strict=True)
    )
    values = sum(graph.values(tensor) for tensor in crossing) if position else 0
    size = sum(packed_size(graph.values(tensor), width) for tensor, width in zip(crossing, sent, strict=True))
    size += link.overhead_bytes
    more = sum(problem.sent_error(tensor, computed[tensor], bits) for tensor, bits in zip(crossing, sent, strict=True))
    return replace(
        device,
        sent_bits=sent,
        packing_ms=values * link.packing_ms_per_value,
        transfer_ms=link.uplink.transfer_ms(size),
        unpacking_ms=values * link.unpacking_ms_per_value,
        bytes_sent=size,
        error=device.error + more,
    )


def keeps_limits(problem: SplitProblem, solution: SplitSolution) -> bool:
    """True if memory and error stay within their limits; always True for the server alone."""
    return solution.position == 0 or (
        solution.peak_bytes <= problem.memory_bytes and solution.error <= problem.max_error
    )


def uniform_bits(graph: LayerGraph, position: int, bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bits of weights and activations of layers 1 to ``position``, all the same."""
    weights = tuple(bits if layer.weights else 0 for layer in graph.layers[:position])
    return weights, (bits,) * position


def server_alone(problem: SplitProblem) -> SplitSolution:
    """Everything at the server: the one solution that always exists (Remark 3)."""
    return evaluate(problem, 0)
