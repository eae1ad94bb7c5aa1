"""A network as layers in topological order: what a split has to send, and what a device has to hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from device_sdk.errors import UsageError


@dataclass(frozen=True)
class Gemm:
    """The work of a layer: ``groups`` products of matrices [rows, depth] · [depth, columns].

    Of a convolution: output pixels, values under the kernel, filters, all per group.
    """

    rows: int
    depth: int
    columns: int
    groups: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations."""
        return self.rows * self.depth * self.columns * self.groups


@dataclass(frozen=True)
class Layer:
    """A layer, or a block of layers, with one output tensor.

    ``inputs``: the tensors that it reads: 0 is the network's input, i the output of layer i, counted from 1.
    ``outputs`` and ``weights``: numbers of values. ``gemm``: None for a layer without multiplications.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: int
    weights: int = 0
    gemm: Gemm | None = None

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations."""
        return 0 if self.gemm is None else self.gemm.macs


@dataclass(frozen=True)
class LayerGraph:
    """Layers in topological order. Position n: layers 1 to n run on the device, the others at the server.

    ``input_values`` in ``input_bits`` each are what the server alone is sent.

    Raises:
        UsageError: no layers, or a layer reads what is not computed before it.
    """

    layers: tuple[Layer, ...]
    input_values: int
    input_bits: int = 8

    def __post_init__(self) -> None:
        if not self.layers:
            raise UsageError("a network without layers cannot be split")
        for index, layer in enumerate(self.layers, start=1):
            if not layer.inputs or not all(0 <= source < index for source in layer.inputs):
                raise UsageError(f"layer {layer.name} reads tensors that are not computed before it")

    @property
    def count(self) -> int:
        """The number of layers, which is also the position of the device alone."""
        return len(self.layers)

    def layer(self, index: int) -> Layer:
        """Layer ``index``, counted from 1."""
        return self.layers[index - 1]

    def values(self, tensor: int) -> int:
        """The number of values of a tensor."""
        return self.input_values if tensor == 0 else self.layers[tensor - 1].outputs

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """For each tensor the last layer that reads it; the network's output is kept to the end."""
        last = [0] * (self.count + 1)
        for index, layer in enumerate(self.layers, start=1):
            for source in layer.inputs:
                last[source] = index
        last[self.count] = self.count
        return tuple(last)

    def crossing(self, position: int) -> tuple[int, ...]:
        """The tensors that are sent when the network is split at ``position``: computed before, read behind."""
        return self._crossing[position]

    def live(self, index: int) -> tuple[int, ...]:
        """The tensors in memory while layer ``index`` runs: its inputs, its output, and what later layers read."""
        return self._live[index]

    @cached_property
    def _crossing(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(tensor for tensor in range(position + 1) if self.last_use[tensor] > position)
            for position in range(self.count + 1)
        )

    @cached_property
    def _live(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(tensor for tensor in range(index + 1) if tensor == index or self.last_use[tensor] >= index)
            for index in range(self.count + 1)
        )

    def working_bytes(self, index: int, bits: Sequence[int]) -> int:
        """Memory of the tensors while layer ``index`` runs; ``bits`` by tensor, the input first."""
        return sum(packed_size(self.values(tensor), bits[tensor]) for tensor in self.live(index))


def packed_size(values: int, bits: int) -> int:
    """Bytes of ``values`` in ``bits`` each, without gaps."""
    return -(-values * bits // 8)
