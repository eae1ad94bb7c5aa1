"""Positions and bits that keep a memory limit, and the choice among them (Auto-Split §4, Eq. 6, Algorithm 1). Pure.

1. ``potential_splits`` drops positions that cannot pay or cannot fit. 2. ``feasible_solutions`` allocates bits at each
of them on a grid of memory budgets for weights and activations. 3. ``choose`` takes the fastest solution whose accuracy
drop, which the caller measures, is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.auto_split.layer_bits import activation_allocation, bit_allocation
from benchmarks.auto_split.layer_graph import packed_size
from benchmarks.auto_split.problem import (
    SplitProblem,
    SplitSolution,
    device_part,
    keeps_limits,
    server_alone,
    uniform_bits,
    with_sent_bits,
)
from device_sdk.errors import UsageError

Bits = tuple[int, ...]


def potential_splits(problem: SplitProblem) -> tuple[int, ...]:
    """Positions whose tensors take no longer to send than the input, and that fit, in the fewest bits (Eq. 6).

    Position 0 is always among them; the last position sends nothing.
    """
    graph, least, least_sent = problem.graph, min(problem.widths), min(problem.sent_widths)
    uplink, limit_ms = problem.link.uplink, server_alone(problem).transfer_ms
    found, weight_bytes, working_bytes = [0], 0, 0
    for position in range(1, graph.count + 1):
        weight_bytes += packed_size(graph.layer(position).weights, least)
        bits = (graph.input_bits, *([least] * position))
        working_bytes = max(working_bytes, graph.working_bytes(position, bits))
        crossing = graph.crossing(position) if position < graph.count else ()
        size = sum(packed_size(graph.values(tensor), least_sent if tensor else graph.input_bits) for tensor in crossing)
        sent_ms = uplink.transfer_ms(size + problem.link.overhead_bytes) if crossing else 0.0
        if sent_ms <= limit_ms and weight_bytes + working_bytes <= problem.memory_bytes:
            found.append(position)
    return tuple(found)


def feasible_solutions(problem: SplitProblem) -> list[SplitSolution]:
    """Solutions within the memory and error limits, the fastest first (Algorithm 1); the server alone is among them.

    Where bits are allocated, budgets are those that the same width everywhere would take. Each allocation is offered
    with every width for what crosses. The device alone in every single width is among them where it fits.
    """
    found: dict[tuple[int, Bits, Bits, Bits], SplitSolution] = {(0, (), (), ()): server_alone(problem)}
    for position in potential_splits(problem)[1:]:
        for solution in _at(problem, position):
            if keeps_limits(problem, solution):
                key = (position, solution.weight_bits, solution.activation_bits, solution.sent_bits)
                found.setdefault(key, solution)
    return sorted(found.values(), key=lambda solution: (solution.latency_ms, solution.error, solution.bytes_sent))


def _at(problem: SplitProblem, position: int) -> Iterator[SplitSolution]:
    """Solutions of the grid at ``position``, and the same bits everywhere."""
    graph = problem.graph
    pairs = [uniform_bits(graph, position, width) for width in problem.widths]
    for weights in _weight_bits(problem, position):
        pairs += [(weights, bits) for bits in _activation_bits(problem, position, weights)]
    crossing = len(graph.crossing(position)) if position < graph.count else 0
    for weights, activations in dict.fromkeys(pairs):
        device = device_part(problem, position, weights, activations)
        for width in problem.sent_widths if crossing else (0,):
            yield with_sent_bits(problem, device, (width,) * crossing)


def _weight_bits(problem: SplitProblem, position: int) -> list[tuple[int, ...]]:
    """Allocations of weights, one for each budget that a single width would take (Eq. 8)."""
    sizes = [layer.weights for layer in problem.graph.layers[:position]]
    budgets = [sum(packed_size(size, width) for size in sizes) for width in sorted(problem.widths)]
    if math.isfinite(problem.memory_bytes):
        budgets.append(int(problem.memory_bytes))
    allocated = (
        bit_allocation(sizes, problem.weight_errors[:position], problem.widths, budget_bytes=budget)
        for budget in budgets
        if budget <= problem.memory_bytes
    )
    return list(dict.fromkeys(bits for bits in allocated if bits is not None))


def _activation_bits(problem: SplitProblem, position: int, weights: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Allocations of activations beside ``weights``, one per budget of the grid and one for what is left (Eq. 9)."""
    graph = problem.graph
    used = sum(packed_size(layer.weights, bits) for layer, bits in zip(graph.layers, weights, strict=False))
    budgets: list[float] = []
    for width in sorted(problem.widths):
        bits = (graph.input_bits, *([width] * position))
        budgets.append(max(graph.working_bytes(index, bits) for index in range(1, position + 1)))
    left = problem.memory_bytes - used
    allocated = (
        activation_allocation(graph, position, problem.activation_errors, problem.widths, budget_bytes=budget)
        for budget in (*(budget for budget in budgets if budget <= left), *([left] if math.isfinite(left) else []))
    )
    return list(dict.fromkeys(bits for bits in allocated if bits is not None))


@dataclass(frozen=True)
class SplitChoice:
    """The fastest solution within the drop. ``drop``: as measured; ``tried``: solutions that were measured."""

    solution: SplitSolution
    drop: float
    tried: int


def choose(
    solutions: Sequence[SplitSolution], *, max_drop: float, drop_of: Callable[[SplitSolution], float]
) -> SplitChoice:
    """The fastest of ``solutions`` whose accuracy drop is at most ``max_drop`` (Remark 4); of equals the first.

    ``drop_of`` measures on private data and is asked from the fastest on, until one passes. What has no less error than
    a solution that failed is taken to fail too.

    Raises:
        UsageError: none passes; the message names the nearest.
    """
    nearest: tuple[float, SplitSolution] | None = None
    failed_error, tried = math.inf, 0
    for solution in sorted(solutions, key=lambda one: one.latency_ms):
        if solution.error >= failed_error:
            continue
        drop, tried = drop_of(solution), tried + 1
        if drop <= max_drop:
            return SplitChoice(solution, drop, tried)
        failed_error = solution.error
        if nearest is None or drop < nearest[0]:
            nearest = (drop, solution)
    if nearest is None:
        raise UsageError("there is no way to split the network")
    raise UsageError(
        f"no split loses at most {max_drop:g}",
        hint=f"the nearest loses {nearest[0]:.4g}, at position {nearest[1].position} in {nearest[1].latency_ms:.3g} ms",
    )
