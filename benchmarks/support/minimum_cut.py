"""The best division of a graph at one precision, as a minimum cut (DADS, QDMP: Auto-Split §2.2).

The device is the source and the server the sink. A layer costs its latency on the side where it is; a tensor is sent
once, however many layers read it there; nothing comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx
import numpy as np

from benchmarks.auto_split.hardware import ORIGINAL_BITS
from benchmarks.auto_split.layer_graph import packed_size
from benchmarks.auto_split.problem import SplitProblem

_DEVICE, _SERVER = "device", "server"


@dataclass(frozen=True)
class GraphCut:
    """``on_device``: the layers there; they need not be a prefix of the topological order."""

    on_device: frozenset[int]
    device_ms: float
    transfer_ms: float
    server_ms: float
    bytes_sent: int
    weight_values: int

    @property
    def latency_ms(self) -> float:
        """End to end."""
        return self.device_ms + self.transfer_ms + self.server_ms


def minimum_cut(problem: SplitProblem, bits: int = ORIGINAL_BITS) -> GraphCut:
    """The least latency over all divisions with weights, activations and the tensors sent in ``bits``.

    A round trip and the protocol's bytes are the same for all divisions that send; they are added afterwards, and
    nothing is sent if the device alone is faster then.
    """
    graph = problem.graph
    network = networkx.DiGraph()
    for index in range(1, graph.count + 1):
        network.add_edge(_DEVICE, index, capacity=problem.server_ms[index - 1])
        network.add_edge(index, _SERVER, capacity=_device_ms(problem, index, bits))
    for tensor in range(graph.count + 1):
        readers = [index for index in range(1, graph.count + 1) if tensor in graph.layer(index).inputs]
        source, sent = tensor or _DEVICE, ("sent", tensor)
        network.add_edge(source, sent, capacity=_sent_ms(problem, _size(problem, tensor, bits)))
        for reader in readers:
            network.add_edge(sent, reader)  # without a capacity: no limit
            if tensor:
                network.add_edge(reader, tensor)
    _, (near, _) = networkx.minimum_cut(network, _DEVICE, _SERVER)
    best = division(problem, frozenset(node for node in near if isinstance(node, int)), bits)
    alone = division(problem, frozenset(range(1, graph.count + 1)), bits)
    return min(best, alone, key=lambda cut: cut.latency_ms)


def division(problem: SplitProblem, on_device: frozenset[int], bits: int) -> GraphCut:
    """Cost of a division at ``bits``."""
    graph = problem.graph
    crossing = {
        tensor
        for index in range(1, graph.count + 1)
        if index not in on_device
        for tensor in graph.layer(index).inputs
        if tensor == 0 or tensor in on_device
    }
    size = sum(_size(problem, tensor, bits) for tensor in crossing) + problem.link.overhead_bytes * bool(crossing)
    return GraphCut(
        on_device=on_device,
        device_ms=sum(_device_ms(problem, index, bits) for index in on_device),
        transfer_ms=problem.link.uplink.transfer_ms(size) if crossing else 0.0,
        server_ms=sum(ms for index, ms in enumerate(problem.server_ms, start=1) if index not in on_device),
        bytes_sent=size,
        weight_values=sum(graph.layer(index).weights for index in on_device),
    )


def _size(problem: SplitProblem, tensor: int, bits: int) -> int:
    return packed_size(problem.graph.values(tensor), bits if tensor else problem.graph.input_bits)


def _sent_ms(problem: SplitProblem, size: int) -> float:
    return problem.link.uplink.transfer_ms(size) - problem.link.uplink.transfer_ms(0)


def _device_ms(problem: SplitProblem, index: int, bits: int) -> float:
    inputs = problem.graph.layer(index).inputs
    input_bits = np.array([bits if source else problem.graph.input_bits for source in inputs])
    return float(problem.device.layer_ms(problem.graph, index, bits, input_bits, bits))
