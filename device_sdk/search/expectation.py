"""Expected accuracies of a pool, and its Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from device_sdk.search.additive import log_odds, smoothed
from device_sdk.search.ladder import ladder, up_to_own_size
from device_sdk.search.port import Candidate, Evaluator, SearchProblem, SearchResult, best_within
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


Floats = npt.NDArray[np.float64]

_COMPARABLE = 2.0  # log odds below the best: candidates further below are left out of the regression
_SLOPE_MEAN, _SLOPE_SPREAD = 0.5, 1.0  # prior: log odds lost at the median distance
_LINE_SAMPLES = 300  # weight of the line, as an equivalent number of samples (docs/adr/0072)
_FAR = 30.0  # standard deviations beyond which a normal tail is taken as exponential
_OWN_NOISE = 0.25  # share of a candidate's sampling variance that is independent of the other candidates
_LEAST_NOISE = 0.5  # squared answers: least variance, also of a candidate that agrees with the nearest one
_LARGER_FIRST = 1e-6  # accuracy by which the larger of two inputs that are equal otherwise comes first


def with_expected_accuracies(result: SearchResult, problem: SearchProblem) -> SearchResult:
    """``result`` with its candidates' ``expected`` accuracy, and the best by it. Evaluates nothing.

    Raises what the evaluator raises.
    """
    pool = expected_candidates(result.pool, problem.supernet, problem.evaluator)
    return replace(result, pool=pool, best=best_within(pool, problem.budget))


def expected_candidates(
    candidates: Sequence[Candidate], supernet: Supernet, evaluator: Evaluator
) -> tuple[Candidate, ...]:
    """``candidates`` with their expected accuracy.

    Of rungs that differ in their input size alone, the larger input counts as at least as accurate, up to the model's
    own. Raises what the evaluator raises.
    """
    if not candidates:
        return ()
    subnets = [one.subnet for one in candidates]
    expected = expected_accuracies(evaluator, subnets, slice(None))
    place_of = {subnet: place for place, subnet in enumerate(subnets)}
    for column in ladder(supernet):
        places = [place_of[rung] for rung in up_to_own_size(column) if rung in place_of]
        expected[places] = _never_falling(expected[places]) + _LARGER_FIRST * np.arange(len(places))
    return tuple(replace(one, expected=value) for one, value in zip(candidates, expected.tolist(), strict=True))


def _never_falling(values: Floats) -> Floats:
    """The closest non-decreasing sequence (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (after, many), (before, few) = pools.pop(), pools.pop()
            pools.append(((before * few + after * many) / (few + many), few + many))
    return np.repeat([value for value, _ in pools], [count for _, count in pools])


def expected_accuracies(evaluator: Evaluator, subnets: Sequence[Subnet], samples: slice) -> Floats:
    """Posterior mean accuracy on unseen samples of subnets that were evaluated on ``samples``: [subnets].

    1. count answers by their margins instead of as right or wrong (``smoothed``); 2. shrink the log odds towards a line
    over the distance from the full model; 3. shift all to the mean that was measured. Subnets far worse than the best
    are not shrunk, and do not affect the others. Raises what the evaluator raises.
    """
    measured = evaluator.scores(subnets, samples).mean(axis=1, dtype=np.float64)
    chances = smoothed(evaluator, subnets, samples)
    expected: Floats = chances.mean(axis=1)
    counted = np.array([log_odds(float(row.sum()), len(row)) for row in chances])
    near = np.flatnonzero(counted >= counted.max() - _COMPARABLE)
    distances = evaluator.distances([subnets[place] for place in near.tolist()], samples)
    expected[near] = 1 / (1 + np.exp(-_expected_log_odds(chances[near], distances)))
    return np.clip(expected + (measured - expected)[near].mean(), 0.0, 1.0)


def _expected_log_odds(chances: Floats, distances: Floats) -> Floats:
    """[candidates], from the chances of correct answers [candidates, samples] and the distances [candidates].

    Bayesian regression on the distances, relative to the candidate that is nearest to the full model. Candidates
    deviate from the line with the variance of ``_LINE_SAMPLES`` samples.
    """
    samples, nearest = chances.shape[1], int(distances.argmin())
    odds = np.array([log_odds(float(row.sum()), samples) for row in chances])
    further = distances - distances[nearest]
    further /= float(np.median(further)) or 1.0
    root = np.linalg.cholesky(_scatter(chances, nearest))
    far, seen = np.linalg.solve(root, np.stack([further, odds - odds[nearest]], axis=1)).T
    variance = 1 / samples + 1 / _LINE_SAMPLES
    precision = float(far @ far) / variance + _SLOPE_SPREAD**-2
    peak = (_SLOPE_MEAN * _SLOPE_SPREAD**-2 - float(far @ seen) / variance) / precision
    line = -_mean_above_0(peak, 1 / math.sqrt(precision)) * far
    whitened = line + _LINE_SAMPLES**-1 / variance * (seen - line)
    expected: Floats = odds[nearest] + root @ whitened
    return expected


def _scatter(chances: Floats, nearest: int) -> Floats:
    """Covariance, per sample, of the log odds relative to those of candidate ``nearest``: [candidates, candidates].

    Candidates that differ from it on the same samples are correlated.
    """
    differences = chances - chances[nearest]
    together = differences @ differences.T
    together[np.diag_indices_from(together)] *= 1 / (1 - _OWN_NOISE)
    together[np.diag_indices_from(together)] += _LEAST_NOISE
    samples = chances.shape[1]
    shares = (chances.sum(axis=1) + 0.5) / (samples + 1)
    slopes = shares * (1 - shares)  # answers per sample and unit of log odds
    scatter: Floats = together / samples / np.outer(slopes, slopes)
    return scatter


def _mean_above_0(peak: float, deviation: float) -> float:
    """Mean of a normal distribution truncated at 0.

    It keeps the slope positive: the candidate nearer to the full model is preferred, also where more distant ones
    measured higher by chance.
    """
    below = -peak / deviation
    if below > _FAR:
        return deviation / below
    density, above = math.exp(-0.5 * below**2) / math.sqrt(math.tau), 0.5 * math.erfc(below / math.sqrt(2))
    return peak + deviation * density / above
