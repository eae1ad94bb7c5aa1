"""The ladder: the original path of each member in every rendition at every input size.

A rung is a network that a user has without any search: the whole network, quantised or not, at a smaller input. Rungs
are cheap to list and to predict, so every search evaluates those near its budget first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from device_sdk.search.nearby import require_feasible
from device_sdk.search.port import SearchProblem
from device_sdk.search.race import Race, SearchRun
from device_sdk.supernet.cost import Budget, CostModel
from device_sdk.supernet.plan import Subnet
from device_sdk.supernet.supernet import Supernet

_ABOVE_BUDGET = 1.1  # predicted latency over the budget, up to which a rung may still measure within it
_TIME_SHARE = 0.4  # of the search, after which no further rung is evaluated but those that race
_SHARES = (0.125, 0.25, 0.5)  # of the samples, after which rungs leave the race
_SURELY = 3.0  # standard errors by which a rung is less accurate that leaves


def ladder(supernet: Supernet) -> list[list[Subnet]]:
    """All rungs, without repetition: a list per member and rendition, by name; in it the smallest input first.

    A block that lacks a rendition runs in its first one.
    """
    own = supernet.cut_points[0].tensors[0].shape[1:]
    sizes = sorted(supernet.sizes, key=lambda size: math.prod(size or own))
    others = sorted({edge.rendition for edge in supernet.edges})
    columns, seen = [], set[Subnet]()
    for own_size, wholes in zip(supernet.originals, zip(*map(supernet.originals_at, sizes), strict=True), strict=True):
        first = own_size.edges[0].rendition
        for name in dict.fromkeys([first, *others]):
            rungs = dict.fromkeys(whole if name == first else supernet.in_rendition(whole, name) for whole in wholes)
            columns.append([one for one in rungs if one not in seen])
            seen |= rungs.keys()
    return [column for column in columns if column]


def up_to_own_size(column: Sequence[Subnet]) -> Sequence[Subnet]:
    """The rungs of a column up to the model's own input size, the size that it was trained at."""
    own = next((place for place, rung in enumerate(column) if not rung.input_size), len(column) - 1)
    return column[: own + 1]


def largest_first(supernet: Supernet, rungs: Sequence[Subnet]) -> list[Subnet]:
    """``rungs`` by input, the largest first."""
    own = supernet.cut_points[0].tensors[0].shape[1:]
    return sorted(rungs, key=lambda rung: -math.prod(rung.input_size or own))


def rungs_near(supernet: Supernet, cost_model: CostModel, budget: Budget) -> list[Subnet]:
    """Rungs that may keep ``budget``, the most promising first.

    Of each rendition in turn: the slowest rung that is predicted to fit, the next slower one, which may measure within
    the budget where predictions are up to 10 % high, then the faster ones. Without a latency, the slowest first.
    """
    turns = zip_longest(*_columns_near(supernet, cost_model, budget))
    return [rung for turn in turns for rung in turn if rung is not None]


def _columns_near(supernet: Supernet, cost_model: CostModel, budget: Budget) -> list[list[Subnet]]:
    """The same by rendition."""
    limit_ms = math.inf if budget.latency_ms is None else budget.latency_ms
    ordered = []
    for column in ladder(supernet):
        fitting = [one for one in column if budget.fits_memory(cost_model.peak_bytes(one))]
        slowest_first = sorted(fitting, key=lambda one: -cost_model.latency_ms(one))
        within = [one for one in slowest_first if cost_model.latency_ms(one) <= limit_ms]
        above = [one for one in slowest_first if limit_ms < cost_model.latency_ms(one) <= _ABOVE_BUDGET * limit_ms]
        ordered.append([*within[:1], *above[-1:], *within[1:], *above[:-1]])
    return ordered


def climb(problem: SearchProblem) -> SearchProblem:
    """``problem`` with the rungs near its budget evaluated, and the time that is left.

    1. order the samples; 2. race the largest input of each column (a member in a rendition) that is predicted to fit,
    and the next larger one if it is near, or else evaluate the fastest subnet; 3. race the second largest input of the
    columns that are still in; 4. evaluate the other rungs, those that lost a race last, until all this has taken 40 %
    of the time. The races know no time limit: in a column the largest input within the budget is the most accurate, so
    the best rung is among these few, also where predictions are somewhat too low or too high.

    Raises:
        InfeasibleBudgetError: no subnet fits; raised before the first evaluation.
    """
    supernet, costs, budget = problem.supernet, problem.cost_model, problem.budget
    cheapest = require_feasible(supernet, costs, budget)
    limit_s, started_s = problem.time_limit_s, problem.clock()
    columns = _columns_near(supernet, costs, budget)
    fitting = {one for column in columns for one in column if budget.fits(costs.cost(one))}
    run = SearchRun(replace(problem, time_limit_s=None))
    race = Race(run, _SHARES)
    if not race.begin():
        return problem
    if not fitting:
        run.evaluate([cheapest])
    elif _raced(run, race, [rung for column in columns for rung in _largest(column, fitting)], fitting):
        still_in = [column for column in columns if run.pool.keys() & column]
        _raced(run, race, [rung for column in still_in for rung in _second(column, fitting)], fitting)

    def left_s(share: float) -> float | None:
        return None if limit_s is None else max(0.0, share * limit_s - (problem.clock() - started_s))

    rest = SearchRun(replace(problem, known=tuple(run.pool.values()), time_limit_s=left_s(_TIME_SHARE)))
    _evaluate_each(rest, sorted(rungs_near(supernet, costs, budget), key=lambda rung: rung in run.started))
    return replace(problem, known=tuple(rest.pool.values()), time_limit_s=left_s(1.0))


def _largest(column: Sequence[Subnet], fitting: Collection[Subnet]) -> list[Subnet]:
    """The first rung of a column that fits, and the next slower one, which is among the first two."""
    return [*[one for one in column if one in fitting][:1], *(one for one in column[:2] if one not in fitting)]


def _second(column: Sequence[Subnet], fitting: Collection[Subnet]) -> list[Subnet]:
    return [one for one in column if one in fitting][1:2]


def _raced(run: SearchRun, race: Race, rungs: Sequence[Subnet], fitting: Collection[Subnet]) -> bool:
    """Evaluate ``rungs`` on growing shares of the samples, without those that have lost; False if it was stopped."""
    running = sorted(rungs, key=run.problem.cost_model.latency_ms, reverse=True)
    while running:
        if not race.advance(running):
            return False
        running = [one for one in _in_the_race(run, running, fitting) if one not in run.pool]
    return True


def _in_the_race(run: SearchRun, rungs: Sequence[Subnet], fitting: Collection[Subnet]) -> list[Subnet]:
    """``rungs`` without those that are surely less accurate than another rung that fits, on the same samples.

    Surely: by three standard errors of the difference, which sums the squared differences of the samples' scores.
    """
    samples = slice(0, min(run.started.get(one, run.problem.evaluator.sample_count) for one in rungs))
    rivals = [one for one in dict.fromkeys([*run.pool, *rungs]) if one in fitting]
    if not rivals:
        return list(rungs)
    scores = run.problem.evaluator.scores
    best = max(scores(rivals, samples).astype(np.float64), key=np.sum)
    rows = scores(rungs, samples).astype(np.float64)
    behind = best.sum() - rows.sum(axis=1)
    lost = behind > _SURELY * np.sqrt(((rows - best) ** 2).sum(axis=1))
    return [one for one, has_lost in zip(rungs, lost.tolist(), strict=True) if not has_lost]


def _evaluate_each(run: SearchRun, rungs: Sequence[Subnet]) -> None:
    for rung in rungs:
        if run.check_stop() or not run.evaluate([rung]):
            break
