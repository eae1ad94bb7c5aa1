"""Exact algorithms on the paths of a supernet: count, enumerate, sample, k cheapest.

All are dynamic programmes over the graph's nodes in order, exact in Python's big integers. Edge weights are any
additive cost (``CostModel.edge_latency_ms`` as a rule).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from device_sdk.errors import UsageError
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

EdgeWeight = Callable[[Edge], float]

WINDOW_STEPS = 512  # resolution of the cost axis when sampling inside a window, in steps per window half-width


def architecture_count(supernet: Supernet) -> int:
    """Number of paths 0 → N over blocks; renditions and input sizes are not distinguished."""
    return _count(supernet, lambda leaving: {(edge.block, end) for edge, end in leaving if not edge.input_size})


def subnet_count(supernet: Supernet) -> int:
    """Number of paths 0 → N over renditions of blocks and input sizes."""
    return _count(supernet, lambda leaving: leaving)


def _count(supernet: Supernet, choices) -> int:  # type: ignore[no-untyped-def]
    to_output = [0] * supernet.output_node + [1]
    for index in range(supernet.output_node - 1, -1, -1):
        to_output[index] = sum(to_output[end] for _, end in choices(supernet.edges_from[index]))
    return to_output[0]


def enumerate_subnets(supernet: Supernet, *, limit: int) -> Iterator[Subnet]:
    """Every subnet, depth first in edge order.

    Raises:
        UsageError: there are more than ``limit``.
    """
    count = subnet_count(supernet)
    if count > limit:
        raise UsageError(f"the supernet has {count} subnets, more than the limit of {limit}")
    return _paths_from(supernet, 0, ())


def _paths_from(supernet: Supernet, index: int, prefix: tuple[Edge, ...]) -> Iterator[Subnet]:
    if index == supernet.output_node:
        yield Subnet(prefix)
        return
    for edge, end in supernet.edges_from[index]:
        yield from _paths_from(supernet, end, (*prefix, edge))


def k_cheapest(supernet: Supernet, weight: EdgeWeight, *, k: int) -> list[tuple[float, Subnet]]:
    """The ``k`` subnets of least total weight, cheapest first (fewer if there are fewer).

    Keeps the k best suffixes of every node and merges them lazily: O(edges · k log k).
    """
    # best[i]: up to k (weight, edge or None, rank in the list of the edge's end) in ascending order
    best: list[list[tuple[float, Edge | None, int, int]]] = [[] for _ in range(supernet.node_count)]
    best[supernet.output_node] = [(0.0, None, 0, 0)]
    for index in range(supernet.output_node - 1, -1, -1):
        heads = [
            (weight(edge) + best[end][0][0], number, 0)
            for number, (edge, end) in enumerate(supernet.edges_from[index])
            if best[end]
        ]
        heapq.heapify(heads)
        while heads and len(best[index]) < k:
            total, number, rank = heapq.heappop(heads)
            edge, end = supernet.edges_from[index][number]
            best[index].append((total, edge, end, rank))
            if rank + 1 < len(best[end]):
                heapq.heappush(heads, (weight(edge) + best[end][rank + 1][0], number, rank + 1))
    return [(entry[0], _follow(best, entry)) for entry in best[0]]


def _follow(best, entry) -> Subnet:  # type: ignore[no-untyped-def]
    edges: list[Edge] = []
    while entry[1] is not None:
        edges.append(entry[1])
        entry = best[entry[2]][entry[3]]
    return Subnet(tuple(edges))


def sample_uniformly(supernet: Supernet, *, count: int, random: SplitMix64) -> list[Subnet]:
    """``count`` subnets, each drawn uniformly from all (with repetition)."""
    return WindowSampler(supernet, lambda edge: 0.0, low=0.0, high=0.0).sample(count=count, random=random)


class WindowSampler:
    """Draws subnets uniformly from those whose total weight lies in [low, high].

    Weights are rounded to a grid, path suffixes are counted per grid cost, a path is drawn by these exact counts from
    the window widened by the largest possible rounding error, and is drawn again if its true weight is outside:
    uniform over the true window, with no path left out.
    """

    def __init__(self, supernet: Supernet, weight: EdgeWeight, *, low: float, high: float) -> None:
        self._supernet = supernet
        self._weight = weight
        self._low, self._high = low, high
        longest = supernet.output_index
        self._step = max((high - low) / 2, abs(high) * 1e-2, 1e-12) / WINDOW_STEPS
        self._slack = longest // 2 + 1  # grid steps: each edge rounds by at most half a step
        self._grid = {edge: round(weight(edge) / self._step) for edge in supernet.edges}
        self._suffixes = self._count_suffixes(math.ceil(high / self._step) + self._slack)
        first = math.floor(low / self._step) - self._slack
        self._starts = sorted((cost, n) for cost, n in self._suffixes[0].items() if cost >= first)
        self._total = sum(n for _, n in self._starts)

    def _count_suffixes(self, highest: int) -> list[dict[int, int]]:
        """suffixes[i][c]: number of paths i → N of grid cost c, those above ``highest`` left out."""
        suffixes: list[dict[int, int]] = [{} for _ in range(self._supernet.node_count)]
        suffixes[self._supernet.output_node] = {0: 1}
        for index in range(self._supernet.output_node - 1, -1, -1):
            here = suffixes[index]
            for edge, end in self._supernet.edges_from[index]:
                own = self._grid[edge]
                for cost, number in suffixes[end].items():
                    if cost + own <= highest:
                        here[cost + own] = here.get(cost + own, 0) + number
        return suffixes

    def sample(self, *, count: int, random: SplitMix64, attempts: int = 1000) -> list[Subnet]:
        """Up to ``count`` draws (with repetition); fewer if ``attempts`` draws in a row miss the window."""
        drawn: list[Subnet] = []
        misses = 0
        while len(drawn) < count and misses < attempts and self._total:
            subnet = self._draw(random)
            weight = sum(self._weight(edge) for edge in subnet.edges)
            if self._low <= weight <= self._high:
                drawn.append(subnet)
                misses = 0
            else:
                misses += 1
        return drawn

    def _draw(self, random: SplitMix64) -> Subnet:
        ticket = random.below(self._total)
        cost = 0
        for cost, number in self._starts:  # noqa: B007  # the loop ends at the start that the ticket names
            if ticket < number:
                break
            ticket -= number
        edges: list[Edge] = []
        index = 0
        while index < self._supernet.output_node:
            for edge, end in self._supernet.edges_from[index]:
                rest = cost - self._grid[edge]
                number = self._suffixes[end].get(rest, 0)
                if ticket < number:
                    edges.append(edge)
                    index, cost = end, rest
                    break
                ticket -= number
        return Subnet(tuple(edges))
