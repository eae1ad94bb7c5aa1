"""Subnets within a budget: which fit, drawing them, and their neighbourhood."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.paths import WindowSampler, enumerate_subnets, k_cheapest, subnet_count
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


LISTING_LIMIT = 4096  # supernets with at most this many subnets are listed instead of sampled
_DRAW_ROUNDS = 8
_MAX_WIDENINGS = 64
_STRETCH_EDGES = 3  # a mutation replaces at most this many edges of the path
_SIZE_EVERY = 6  # one mutation in this many changes the input size, if the bundle has several
_TRIES = 8  # random replacements before a mutation is given up


@dataclass(frozen=True)
class Neighbourhood:
    """The subnets of predicted latency in [low_ms, high_ms] that fit the budget's memory limit."""

    supernet: Supernet
    cost_model: CostModel
    budget: Budget
    low_ms: float
    high_ms: float

    def __contains__(self, subnet: Subnet) -> bool:
        near = self.distance_ms(self.cost_model.latency_ms(subnet)) == 0
        return near and self.budget.fits_memory(self.cost_model.peak_bytes(subnet))

    def distance_ms(self, latency_ms: float) -> float:
        """Distance of ``latency_ms`` from the window; 0 inside."""
        return max(self.low_ms - latency_ms, latency_ms - self.high_ms, 0.0)

    def widened(self) -> Neighbourhood:
        """A window with the same upper end and twice the width."""
        return replace(self, low_ms=self.low_ms - (self.high_ms - self.low_ms))

    def draw(self, *, count: int, random: SplitMix64, seen: Collection[Subnet] = ()) -> list[Subnet]:
        """Up to ``count`` distinct members that are not in ``seen``, uniformly at random.

        Fewer only if there are no more (supernets of up to ``LISTING_LIMIT`` subnets) or a bounded number of draws
        found no more (larger ones).
        """
        if self._listed is not None:
            return random.shuffled([subnet for subnet in self._listed if subnet not in seen])[:count]
        drawn: dict[Subnet, None] = {}
        for _ in range(_DRAW_ROUNDS):
            for subnet in self._sampler.sample(count=count, random=random):
                if subnet not in seen and subnet in self:
                    drawn[subnet] = None
            if len(drawn) >= count:
                break
        return list(drawn)[:count]

    @cached_property
    def _listed(self) -> list[Subnet] | None:
        if subnet_count(self.supernet) > LISTING_LIMIT:
            return None
        return [subnet for subnet in enumerate_subnets(self.supernet, limit=LISTING_LIMIT) if subnet in self]

    @cached_property
    def _sampler(self) -> WindowSampler:
        low, high = self.low_ms - self.cost_model.offset_ms, self.high_ms - self.cost_model.offset_ms
        return WindowSampler(self.supernet, self.cost_model.edge_latency_ms, low=low, high=high)


def nearby_init(
    supernet: Supernet,
    cost_model: CostModel,
    budget: Budget,
    *,
    window_ratio: float,
    count: int,
    random: SplitMix64,
) -> tuple[list[Subnet], Neighbourhood]:
    """Up to ``count`` distinct subnets near the budget T, uniformly at random, and the neighbourhood used.

    The window is [T - ΔT, T + ΔT] with ΔT = ``window_ratio`` · T. T is clamped to the slowest subnet's latency, which
    also stands for a missing limit. A window with fewer than ``count`` subnets is widened downwards, at most to the
    fastest subnet. Source: AdaptiveNet §5.1.
    """
    fastest_ms, slowest_ms = latency_range_ms(supernet, cost_model)
    target_ms = slowest_ms if budget.latency_ms is None else min(budget.latency_ms, slowest_ms)
    half_ms = window_ratio * target_ms
    nearby = Neighbourhood(supernet, cost_model, budget, low_ms=target_ms - half_ms, high_ms=target_ms + half_ms)
    for _ in range(_MAX_WIDENINGS):
        subnets = nearby.draw(count=count, random=random)
        if len(subnets) >= count or nearby.low_ms <= fastest_ms:
            break
        nearby = nearby.widened()
    return subnets, nearby


def latency_range_ms(supernet: Supernet, cost_model: CostModel) -> tuple[float, float]:
    """Predicted latency of the fastest and of the slowest subnet."""
    _, fastest = k_cheapest(supernet, cost_model.edge_latency_ms, k=1)[0]
    _, slowest = k_cheapest(supernet, lambda edge: -cost_model.edge_latency_ms(edge), k=1)[0]
    return cost_model.latency_ms(fastest), cost_model.latency_ms(slowest)


def within_budget(supernet: Supernet, cost_model: CostModel, budget: Budget) -> Neighbourhood:
    """All subnets that fit ``budget``."""
    fastest_ms, slowest_ms = latency_range_ms(supernet, cost_model)
    target_ms = slowest_ms if budget.latency_ms is None else min(budget.latency_ms, slowest_ms)
    return Neighbourhood(supernet, cost_model, budget, low_ms=fastest_ms, high_ms=target_ms)


def with_each_block(supernet: Supernet, subnet: Subnet) -> list[Subnet]:
    """``subnet`` with each added block alone, in the renditions of what it replaces where it has them.

    A block that ends beside the subnet is followed by the original blocks of the member that passes its end.
    """
    nodes = [0, *(supernet.nodes_of(edge)[1] for edge in subnet.edges)]
    size, existing, found = subnet.input_size, set(supernet.edges), []
    for block in supernet.blocks:
        start, end = supernet.node(block.start, size), supernet.node(block.end, size)
        if block.is_original or start not in nodes[:-1]:
            continue
        first = nodes.index(start)
        after = subnet.edges[nodes.index(end) :] if end in nodes else supernet.originals_from(block.end)
        names = [subnet.edges[first].rendition, block.renditions[0].name]
        added = [edge for edge in (Edge(block.id, name, size) for name in names) if edge in existing]
        rest = Subnet(tuple(edge.at(size) for edge in after))
        if added and all(edge in existing for edge in rest.edges):
            swapped = Subnet((*subnet.edges[:first], added[0], *rest.edges))
            found.append(supernet.in_rendition(swapped, names[0]) if end not in nodes else swapped)
    return found


def mutate(nearby: Neighbourhood, subnet: Subnet, *, random: SplitMix64) -> Subnet | None:
    """``subnet`` with a random stretch replaced by another path; None if no try lands in the neighbourhood."""
    for _ in range(_TRIES):
        replaced = _replace_random_stretch(nearby.supernet, subnet, random)
        if replaced is not None and replaced[0] in nearby:
            return replaced[0]
    return None


def nearby_mutate(nearby: Neighbourhood, subnet: Subnet, *, random: SplitMix64) -> Subnet | None:
    """``subnet`` with one branch replaced, and further ones as needed to stay near the budget.

    1. replace a random stretch by another random path between its ends; 2. while the latency is outside the window,
    apply the branch replacement outside the new stretch that brings it nearest. None if the result is not in the
    neighbourhood. Source: AdaptiveNet §5.1.
    """
    replaced = _replace_random_stretch(nearby.supernet, subnet, random)
    if replaced is None:
        return None
    mutated, start, end = replaced
    for _ in subnet.edges:
        if nearby.distance_ms(nearby.cost_model.latency_ms(mutated)) == 0:
            break
        nearer = _nearest_replacement(nearby, mutated, start, end, random)
        if nearer is None:
            break
        mutated = nearer
    return mutated if mutated in nearby else None


def _replace_random_stretch(supernet: Supernet, subnet: Subnet, random: SplitMix64) -> tuple[Subnet, int, int] | None:
    """The subnet with one stretch or the input size replaced, and the nodes between which it changed."""
    if len(supernet.sizes) > 1 and not random.below(_SIZE_EVERY):
        return _at_random_size(supernet, subnet, random)
    nodes = [0, *(supernet.nodes_of(edge)[1] for edge in subnet.edges)]
    for _ in range(_TRIES):
        first = random.below(len(nodes) - 1)
        last = first + 1 + random.below(min(_STRETCH_EDGES, len(nodes) - 1 - first))
        stretch = _random_stretch(supernet, nodes[first], nodes[last], random)
        edges = (*subnet.edges[:first], *stretch, *subnet.edges[last:])
        if stretch != subnet.edges[first:last] and len({edge.input_size for edge in edges}) == 1:
            return Subnet(edges), nodes[first], nodes[last]
    return None


def _at_random_size(supernet: Supernet, subnet: Subnet, random: SplitMix64) -> tuple[Subnet, int, int] | None:
    """The same blocks at another input size, if they all run there.

    The changed range is empty, so later replacements may touch any edge.
    """
    anywhere = all(supernet.rendition(edge).any_size for edge in subnet.edges)
    others = [size for size in supernet.sizes if size != subnet.input_size and (anywhere or not size)]
    return (subnet.at(random.choice(others)), 0, 0) if others else None


def _random_stretch(supernet: Supernet, start: int, end: int, random: SplitMix64) -> tuple[Edge, ...]:
    """A path between two nodes, uniformly at random."""
    paths_to_end = {end: 1}
    for index in range(end - 1, start - 1, -1):
        paths_to_end[index] = sum(paths_to_end.get(next_, 0) for _, next_ in supernet.edges_from[index])
    edges: list[Edge] = []
    while start < end:
        ticket = random.below(paths_to_end[start])
        for edge, next_ in supernet.edges_from[start]:
            paths = paths_to_end.get(next_, 0)
            if ticket < paths:
                edges.append(edge)
                start = next_
                break
            ticket -= paths
    return tuple(edges)


def _nearest_replacement(
    nearby: Neighbourhood, subnet: Subnet, start: int, end: int, random: SplitMix64
) -> Subnet | None:
    """The subnet with the branch outside start … end replaced that brings its latency nearest to the window.

    Ties are broken at random; None if no replacement is nearer than ``subnet`` itself.
    """
    latency_ms = nearby.cost_model.latency_ms(subnet)
    nearest = nearby.distance_ms(latency_ms)
    best: list[tuple[int, int, tuple[Edge, ...]]] = []
    for first, last, stretch in _replacements(nearby.supernet, subnet, start, end):
        old_ms = sum(map(nearby.cost_model.edge_latency_ms, subnet.edges[first:last]))
        new_ms = sum(map(nearby.cost_model.edge_latency_ms, stretch))
        distance = nearby.distance_ms(latency_ms + new_ms - old_ms)
        if distance < nearest:
            nearest, best = distance, [(first, last, stretch)]
        elif best and distance == nearest:
            best.append((first, last, stretch))
    if not best:
        return None
    first, last, stretch = random.choice(best)
    return Subnet((*subnet.edges[:first], *stretch, *subnet.edges[last:]))


def _replacements(
    supernet: Supernet, subnet: Subnet, start: int, end: int
) -> Iterator[tuple[int, int, tuple[Edge, ...]]]:
    """Replacements of edges first … last-1 of the subnet, all outside the nodes start … end.

    Either a single edge replaces all edges between two nodes of the path, or the original blocks replace a block that
    spans several. With changes of the input size, these moves connect all subnets of one pretrained network.
    """
    size = subnet.input_size
    nodes = [0, *(supernet.nodes_of(edge)[1] for edge in subnet.edges)]
    place = {node: number for number, node in enumerate(nodes)}
    for first, (node, replaced) in enumerate(zip(nodes, subnet.edges, strict=False)):
        if start <= node < end:
            continue
        for edge, reached in supernet.edges_from[node]:
            crosses = node < end and reached > start
            fits = reached in place and edge.input_size == size
            if fits and not crosses and (edge,) != subnet.edges[first : place[reached]]:
                yield first, place[reached], (edge,)
        block = supernet.block(replaced.block)
        for originals in supernet.original_stretches(block.start, block.end):
            if len(originals) > 1:
                yield first, first + 1, supernet.edges_along(originals, size)
