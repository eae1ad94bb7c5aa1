"""The path of the highest additive value within a budget, exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

FRONT_LIMIT = 4096  # paths kept per node; larger fronts are thinned out evenly over their cost
_PRICES = tuple(4.0**power for power in range(-4, 5))  # Lagrange multipliers for memory, relative to value / excess
_ROUNDING = 1e-9
_TIGHTENINGS = 8


@dataclass(frozen=True)
class _Front:
    """The Pareto front of paths from a node to the output, sorted by cost."""

    cost: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]
    edge: npt.NDArray[np.intp]  # index of the first edge among those that leave the node
    rank: npt.NDArray[np.intp]  # index of the remaining path in the front of that edge's end


class ParetoPaths:
    """Pareto fronts of an additive cost and an additive value; exact while fronts stay under FRONT_LIMIT.

    Memory: one front per node. ``limit``: paths that cost more are pruned.
    """

    def __init__(
        self, supernet: Supernet, *, value: Mapping[Edge, float], cost: Mapping[Edge, float], limit: float = math.inf
    ) -> None:
        self._supernet = supernet
        self._fronts: list[_Front] = [_OUTPUT] * supernet.node_count
        spare = _cheapest_from_input(supernet, cost)
        for index in range(supernet.output_node - 1, -1, -1):
            self._fronts[index] = self._front(index, value, cost, limit - spare[index])

    def _front(self, index: int, value: Mapping[Edge, float], cost: Mapping[Edge, float], limit: float) -> _Front:
        leaving = self._supernet.edges_from[index]
        ends = [self._fronts[end] for _, end in leaving]
        costs = np.concatenate([front.cost + cost[edge] for (edge, _), front in zip(leaving, ends, strict=True)])
        values = np.concatenate([front.value + value[edge] for (edge, _), front in zip(leaving, ends, strict=True)])
        edges = np.repeat(np.arange(len(leaving)), [len(front.cost) for front in ends])
        ranks = np.concatenate([np.arange(len(front.cost)) for front in ends])
        order = np.lexsort((edges, -values, costs))
        best = np.maximum.accumulate(np.concatenate([[-math.inf], values[order][:-1]]))
        order = order[(values[order] > best) & (costs[order] <= limit)]
        if len(order) > FRONT_LIMIT:
            order = order[np.linspace(0, len(order) - 1, FRONT_LIMIT).round().astype(np.intp)]
        return _Front(costs[order], values[order], edges[order], ranks[order])

    def best(self, limit: float = math.inf) -> Subnet | None:
        """The path of the highest value that costs at most ``limit``; None if there is none."""
        place = int(np.searchsorted(self._fronts[0].cost, limit, side="right")) - 1
        if place < 0:
            return None
        edges: list[Edge] = []
        index = 0
        while index < self._supernet.output_node:
            front = self._fronts[index]
            edge, end = self._supernet.edges_from[index][front.edge[place]]
            place, index = int(front.rank[place]), end
            edges.append(edge)
        return Subnet(tuple(edges))


_OUTPUT = _Front(np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.intp), np.zeros(1, dtype=np.intp))


def _cheapest_from_input(supernet: Supernet, cost: Mapping[Edge, float]) -> list[float]:
    reached = [0.0] + [math.inf] * supernet.output_node
    for index, leaving in enumerate(supernet.edges_from):
        for edge, end in leaving:
            reached[end] = min(reached[end], reached[index] + cost[edge])
    return reached


def best_path(supernet: Supernet, cost_model: CostModel, budget: Budget, value: Mapping[Edge, float]) -> Subnet | None:
    """The subnet of the highest total ``value`` that fits ``budget``; None if none is found.

    Exact for a latency limit, as far as latency is additive. Peak memory is not additive (resident bytes plus the
    largest working set). Where its limit binds, a Lagrangian relaxation is solved for several multipliers, paths of
    neighbouring multipliers are crossed, and the best path that fits is returned: a heuristic.
    """
    best = _best_in_time(supernet, cost_model, budget, value)
    if best is None or budget.fits_memory(cost_model.peak_bytes(best)):
        return best
    bytes_of = {edge: cost.resident_bytes + cost.working_bytes for edge, cost in cost_model.edge_costs.items()}
    excess = cost_model.peak_bytes(best) - (budget.memory_mb or 0.0) * MB
    worth = max(sum(abs(value[edge]) for edge in best.edges), _ROUNDING)
    relaxed: list[Subnet] = [best]
    for price in _PRICES:
        priced = {edge: value[edge] - price * worth / excess * bytes_of[edge] for edge in supernet.edges}
        subnet = _best_in_time(supernet, cost_model, budget, priced)
        if subnet is not None and subnet != relaxed[-1]:
            relaxed.append(subnet)
    crossed = [subnet for pair in pairwise(relaxed) for subnet in _crossed(supernet, *pair)]
    fitting = [subnet for subnet in (*relaxed, *crossed) if budget.fits(cost_model.cost(subnet))]
    return max(fitting, key=lambda subnet: sum(value[edge] for edge in subnet.edges), default=None)


def _crossed(supernet: Supernet, a: Subnet, b: Subnet) -> Iterator[Subnet]:
    """Both one-point crossovers of two paths, at every inner node that they share."""
    places = [{supernet.nodes_of(edge)[1]: place for place, edge in enumerate(s.edges, start=1)} for s in (a, b)]
    for node in places[0].keys() & places[1].keys() - {supernet.output_node}:
        yield Subnet((*a.edges[: places[0][node]], *b.edges[places[1][node] :]))
        yield Subnet((*b.edges[: places[1][node]], *a.edges[places[0][node] :]))


def _best_in_time(
    supernet: Supernet, cost_model: CostModel, budget: Budget, value: Mapping[Edge, float]
) -> Subnet | None:
    latency = {edge: cost_model.edge_latency_ms(edge) for edge in supernet.edges}
    if budget.latency_ms is None:
        return ParetoPaths(supernet, value=value, cost=latency).best()
    # the order of summation changes the last digits, and a cost model may add terms to the sum of its edges
    limit_ms = (budget.latency_ms - cost_model.offset_ms) * (1 + _ROUNDING)
    paths = ParetoPaths(supernet, value=value, cost=latency, limit=limit_ms)
    for _ in range(_TIGHTENINGS):
        subnet = paths.best(limit_ms)
        if subnet is None:
            return None
        excess_ms = cost_model.latency_ms(subnet) - budget.latency_ms
        if excess_ms <= 0:
            return subnet
        limit_ms = min(limit_ms, sum(latency[edge] for edge in subnet.edges)) * (1 - _ROUNDING) - excess_ms
    return None
