"""Baselines for Auto-Split, under the same costs (Auto-Split §5.3, §5.4). Pure.

The minimum cut of DADS and QDMP, which needs a graph library, is in ``benchmarks/support/minimum_cut``.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.auto_split.hardware import ORIGINAL_BITS
from benchmarks.auto_split.layer_graph import packed_size
from benchmarks.auto_split.problem import SplitProblem, SplitSolution, evaluate, server_alone, uniform_bits
from device_sdk.errors import UsageError


def server_with_jpeg(problem: SplitProblem, *, ratio: float, coding_ms: float = 0.0) -> SplitSolution:
    """Everything at the server; the input is sent as a JPEG of 1 / ``ratio`` of its bytes.

    ``coding_ms``: compression on the device and decompression at the server together.

    Raises:
        UsageError: a ratio that is not above zero, or a negative time.
    """
    if not ratio > 0 or not coding_ms >= 0:
        raise UsageError("a JPEG needs a ratio above zero and a time that is not negative")
    graph, link = problem.graph, problem.link
    size = round(packed_size(graph.input_values, graph.input_bits) / ratio) + link.overhead_bytes
    raw = server_alone(problem)
    return replace(raw, bytes_sent=size, transfer_ms=link.uplink.transfer_ms(size), packing_ms=coding_ms)


def device_alone(problem: SplitProblem, bits: int = ORIGINAL_BITS) -> SplitSolution:
    """Everything on the device, with the same bits everywhere (U8, U4, U2). It may break the limits."""
    return evaluate(problem, problem.graph.count, *uniform_bits(problem.graph, problem.graph.count, bits))


def neurosurgeon(problem: SplitProblem, bits: int = ORIGINAL_BITS) -> SplitSolution:
    """The fastest position in topological order, at the original precision (Neurosurgeon, made for chains).

    Layers of parallel branches stand one behind the other, so a cut through a branch sends all tensors that cross.
    """
    return min(
        (uniform_split(problem, position, bits) for position in range(problem.graph.count + 1)),
        key=lambda solution: solution.latency_ms,
    )


def uniform_split(problem: SplitProblem, position: int, bits: int) -> SplitSolution:
    """A split at ``position`` with weights, activations and the tensors sent in the same bits."""
    crossing = problem.graph.crossing(position) if position < problem.graph.count else ()
    return evaluate(problem, position, *uniform_bits(problem.graph, position, bits), (bits,) * len(crossing))
