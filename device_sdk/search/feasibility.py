"""Exact feasibility check of a budget, before anything is evaluated."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.paths import k_cheapest
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

LABEL_LIMIT = 200_000  # partial paths that the memory-constrained search expands before it falls back
_SHOWN_BLOCKS = 6


def require_feasible(supernet: Supernet, cost_model: CostModel, budget: Budget) -> Subnet:
    """The fastest subnet that fits the budget's memory limit, if it also fits its latency limit.

    Exact for a latency limit, a memory limit and both together (see ``fastest_within`` for its one bound).

    Raises:
        InfeasibleBudgetError: nothing fits. It names the subnet of least memory if the memory limit alone cannot be
            met, otherwise the fastest subnet within the memory limit.
    """
    fastest = fastest_within(supernet, cost_model, memory_mb=budget.memory_mb)
    if fastest is None:
        raise _too_little_memory(cost_model, budget, smallest_subnet(supernet, cost_model))
    if not budget.fits_latency(cost_model.latency_ms(fastest)):
        raise _too_little_time(cost_model, budget, fastest)
    return fastest


def smallest_subnet(supernet: Supernet, cost_model: CostModel) -> Subnet:
    """The subnet of least peak memory, exactly.

    Peak memory is the sum of resident bytes plus the largest working set, which is not additive. Every distinct working
    set is tried as a ceiling: among the edges under it, a shortest path minimises the resident bytes.
    """
    costs = cost_model.edge_costs
    found: list[Subnet] = []
    for ceiling in sorted({costs[edge].working_bytes for edge in supernet.edges}):

        def resident(edge: Edge, ceiling: int = ceiling) -> float:
            return costs[edge].resident_bytes if costs[edge].working_bytes <= ceiling else math.inf

        total, subnet = k_cheapest(supernet, resident, k=1)[0]
        if total < math.inf:
            found.append(subnet)
    return min(found, key=lambda subnet: (cost_model.peak_bytes(subnet), cost_model.latency_ms(subnet)))


def fastest_within(supernet: Supernet, cost_model: CostModel, *, memory_mb: float | None) -> Subnet | None:
    """The fastest subnet within a memory limit, None if there is none; without a limit the fastest of all.

    Exact: A* over partial paths, ordered by their lower bound on total latency. Partial paths that cannot meet the
    limit, or that a faster one dominates in memory, are pruned. After more than ``LABEL_LIMIT`` partial paths the
    subnet of least memory is returned instead.
    """
    fastest = k_cheapest(supernet, cost_model.edge_latency_ms, k=1)[0][1]
    if memory_mb is None or cost_model.peak_bytes(fastest) <= memory_mb * MB:
        return fastest
    smallest = smallest_subnet(supernet, cost_model)
    if cost_model.peak_bytes(smallest) > memory_mb * MB:
        return None
    return _fastest_under(supernet, cost_model, memory_mb * MB) or smallest


def _fastest_under(supernet: Supernet, cost_model: CostModel, memory_bytes: float) -> Subnet | None:
    latency_ahead = _cheapest_to_output(supernet, cost_model.edge_latency_ms)
    resident_ahead = _cheapest_to_output(supernet, lambda edge: cost_model.edge_costs[edge].resident_bytes)
    # a label: (least possible latency, running number, node, latency, resident, working, edges)
    queue: list[tuple[float, int, int, float, int, int, tuple[Edge, ...]]] = [(0.0, 0, 0, 0.0, 0, 0, ())]
    settled: list[list[tuple[int, int]]] = [[] for _ in range(supernet.node_count)]
    pushed = 1
    while queue and pushed < LABEL_LIMIT:
        _, _, position, latency, resident, working, edges = heapq.heappop(queue)
        if position == supernet.output_node:
            return Subnet(edges)
        if any(other[0] <= resident and other[1] <= working for other in settled[position]):
            continue
        settled[position].append((resident, working))
        for edge, end in supernet.edges_from[position]:
            cost = cost_model.edge_costs[edge]
            new_resident = resident + cost.resident_bytes
            new_working = max(working, cost.working_bytes)
            if new_resident + resident_ahead[end] + new_working > memory_bytes:
                continue
            new_latency = latency + cost_model.edge_latency_ms(edge)
            least = new_latency + latency_ahead[end]
            label = (least, pushed, end, new_latency, new_resident, new_working, (*edges, edge))
            heapq.heappush(queue, label)
            pushed += 1
    return None


def _cheapest_to_output(supernet: Supernet, weight: Callable[[Edge], float]) -> list[float]:
    ahead = [math.inf] * supernet.output_node + [0.0]
    for index in range(supernet.output_node - 1, -1, -1):
        ahead[index] = min(weight(edge) + ahead[end] for edge, end in supernet.edges_from[index])
    return ahead


def _too_little_time(cost_model: CostModel, budget: Budget, nearest: Subnet) -> InfeasibleBudgetError:
    latency_ms = cost_model.latency_ms(nearest)
    within = "" if budget.memory_mb is None else f" within {budget.memory_mb:.4g} MB"
    return InfeasibleBudgetError(
        f"no subnet runs in {budget.latency_ms:.4g} ms{within}; "
        f"the fastest is predicted at {latency_ms:.3g} ms ({_shortened(nearest)})",
        hint=f"set latency_ms to {_rounded_up(latency_ms)} or more",
        nearest=nearest.block_ids,
        nearest_latency_ms=latency_ms,
        nearest_peak_bytes=cost_model.peak_bytes(nearest),
    )


def _too_little_memory(cost_model: CostModel, budget: Budget, nearest: Subnet) -> InfeasibleBudgetError:
    peak_bytes = cost_model.peak_bytes(nearest)
    return InfeasibleBudgetError(
        f"no subnet runs in {budget.memory_mb:.4g} MB; "
        f"the smallest is predicted at {peak_bytes / MB:.3g} MB ({_shortened(nearest)})",
        hint=f"set memory_mb to {_rounded_up(peak_bytes / MB)} or more",
        nearest=nearest.block_ids,
        nearest_latency_ms=cost_model.latency_ms(nearest),
        nearest_peak_bytes=peak_bytes,
    )


def _shortened(subnet: Subnet) -> str:
    names = [str(edge) for edge in subnet.edges]
    return " ".join(names if len(names) <= _SHOWN_BLOCKS else [*names[:3], "…", *names[-2:]])


def _rounded_up(value: float) -> str:
    """``value`` with three significant digits, never below it."""
    from decimal import ROUND_CEILING, Context  # slow to import, and only needed here

    return f"{Context(prec=3, rounding=ROUND_CEILING).create_decimal(value):f}"
