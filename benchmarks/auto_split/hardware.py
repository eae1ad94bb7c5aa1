"""Latency of layers from a description of hardware, for devices that cannot be measured here. Pure.

A roofline: a layer takes as long as its arithmetic or its memory traffic, whichever is longer. Fewer bits shorten the
traffic, not the arithmetic (Auto-Split §5.1: units for 8 bits are fixed). Where a layer's weights and inputs exceed the
memory on the chip, one of them is read again for every part of the other.

A systolic array computes a layer in folds (SCALE-Sim, Samajdar 2018, output stationary): a product [rows, depth] ·
[depth, columns] takes ⌈rows / R⌉ · ⌈columns / C⌉ folds of R + C + depth − 2 cycles, as ``scalesim`` 3.0.0 counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.auto_split.layer_graph import Gemm, Layer, LayerGraph
from device_sdk.errors import UsageError

Number = npt.NDArray[np.float64] | float
Bits = npt.NDArray[np.int64] | int
ORIGINAL_BITS = 16  # of a network before it is quantised (Auto-Split §3.1)


@dataclass(frozen=True)
class Array:
    """A systolic array of ``rows`` × ``columns`` units at ``clock_hz``."""

    rows: int
    columns: int
    clock_hz: float

    def cycles(self, gemm: Gemm) -> int:
        """Cycles of a layer without waiting for memory; groups run one after another."""
        folds = -(-gemm.rows // self.rows) * -(-gemm.columns // self.columns)
        return gemm.groups * folds * (self.rows + self.columns + gemm.depth - 2)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A processor: ``macs_per_s``, off-chip ``bytes_per_s``, ``on_chip_bytes`` and ``memory_bytes``.

    ``slower_from_bits``: operands of more bits take ``slower_by`` times as long. ``array``: computes in folds instead
    of at ``macs_per_s``. ``factor``: k for a device k times slower.

    Raises:
        UsageError: a rate or a size is not above zero.
    """

    name: str
    macs_per_s: float
    bytes_per_s: float
    on_chip_bytes: float
    memory_bytes: float
    slower_from_bits: int = ORIGINAL_BITS + 1
    slower_by: float = 1.0
    array: Array | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        rates = (self.macs_per_s, self.bytes_per_s, self.on_chip_bytes, self.memory_bytes, self.slower_by, self.factor)
        if not all(rate > 0 for rate in rates):
            raise UsageError(f"a rate or a size of {self.name} is not above zero")

    def layer_ms(self, graph: LayerGraph, index: int, weight_bits: Bits, input_bits: Bits, output_bits: Bits) -> Number:
        """Latency of layer ``index``; bits may be arrays: [choices], and [choices, inputs] for ``input_bits``."""
        layer = graph.layer(index)
        sizes = np.array([graph.values(source) for source in layer.inputs], dtype=np.float64)
        read = np.asarray(input_bits, dtype=np.float64) @ sizes / 8
        weights = layer.weights * np.asarray(weight_bits, dtype=np.float64) / 8
        traffic = self._traffic(weights, read) + layer.outputs * np.asarray(output_bits, dtype=np.float64) / 8
        widest = np.maximum(np.asarray(weight_bits), np.asarray(input_bits).max(axis=-1))
        slower = np.where(widest >= self.slower_from_bits, self.slower_by, 1.0)
        return self.factor * 1e3 * np.maximum(self._arithmetic_s(layer) * slower, traffic / self.bytes_per_s)

    def _arithmetic_s(self, layer: Layer) -> float:
        if layer.gemm is None:
            return 0.0
        if self.array is not None:
            return self.array.cycles(layer.gemm) / self.array.clock_hz
        return layer.macs / self.macs_per_s

    def _traffic(self, weights: Number, read: Number) -> Number:
        """Bytes that are read: either operand may stay on the chip, part by part, while the other passes by."""
        parts_of_weights = np.maximum(np.ceil(weights / self.on_chip_bytes), 1)
        parts_of_inputs = np.maximum(np.ceil(read / self.on_chip_bytes), 1)
        return np.minimum(weights + read * parts_of_weights, read + weights * parts_of_inputs)


@dataclass(frozen=True)
class MeasuredLayers:
    """Measured latencies: ``layers_ms`` by layer, whatever the bits; ``factor``: k for a device k times slower."""

    layers_ms: tuple[float, ...]
    factor: float = 1.0

    def layer_ms(self, graph: LayerGraph, index: int, weight_bits: Bits, input_bits: Bits, output_bits: Bits) -> Number:
        """The same for all bits."""
        return self.factor * self.layers_ms[index - 1] + 0.0 * np.asarray(weight_bits, dtype=np.float64)


def server_latencies_ms(hardware: Hardware, graph: LayerGraph, bits: int = ORIGINAL_BITS) -> tuple[float, ...]:
    """The latency of every layer at one precision."""
    return tuple(
        float(hardware.layer_ms(graph, index, bits, np.full(len(layer.inputs), bits), bits))
        for index, layer in enumerate(graph.layers, start=1)
    )


def tensor_bits(graph: LayerGraph, index: int, bits: Sequence[int]) -> npt.NDArray[np.int64]:
    """The bits of the inputs of layer ``index``; ``bits`` by tensor, the input first."""
    return np.array([bits[source] for source in graph.layer(index).inputs])


# Auto-Split Table 1. Operations count twice per MAC: with 168 and 65,536 units this gives the clocks. Units are for
# 8 bits (§5.1); of 16 bits they take two passes. Which dataflow the paper simulated is not said.
EYERISS = Hardware(
    name="Eyeriss",
    macs_per_s=17e9,
    bytes_per_s=1e9,
    on_chip_bytes=192 * 1024,
    memory_bytes=4 * 1024**3,
    slower_from_bits=9,
    slower_by=2.0,
    array=Array(12, 14, 17e9 / 168),
)
TPU = Hardware(
    name="TPU",
    macs_per_s=48e12,
    bytes_per_s=13e9,
    on_chip_bytes=28 * 1024**2,
    memory_bytes=16 * 1024**3,
    slower_from_bits=9,
    slower_by=2.0,
    array=Array(256, 256, 48e12 / 65_536),
)
