"""Our search: a model of accuracy proposes, exact paths within the budget, a race evaluates.

The parts are known: Bayesian optimisation with an additive Gaussian process, Thompson sampling, racing. What makes them
fit is the graph: the best path of an additive draw within a budget can be found exactly (``pareto``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.errors import UsageError
from device_sdk.progress import Task
from device_sdk.search.additive import AdditiveModel, Belief, log_odds
from device_sdk.search.expectation import best_path, expected_accuracies
from device_sdk.search.nearby import (
    LISTING_LIMIT,
    Neighbourhood,
    nearby_mutate,
    require_feasible,
    with_each_block,
    within_budget,
)
from device_sdk.search.port import SearchProblem, SearchResult
from device_sdk.search.race import Race, SearchRun
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.paths import subnet_count
from device_sdk.supernet.plan import Subnet

_OTHER_BUDGETS = (0.8, 0.9, 1.1, 1.2)  # other budgets, relative to the one asked for, that the pool gets a subnet for
_EXPECTED_PATIENCE = 2  # generations by expectation without a better subnet
_EXPECTED_GAIN = 0.1  # correct answers that a better subnet is better by: less is rounding
_EXPECTED_VARIANCE, _EXPECTED_SCATTER = 1e-4, 0.03  # of expected log odds; of what they lie below the best, its share
_WINDOW_RATIO = 0.05  # mutations stay this close below the budget


@dataclass(frozen=True, kw_only=True)
class BayesianPathSearch:
    """Bayesian search over exact paths.

    ``generations`` groups of ``group`` subnets at most, the first few evaluated on all samples, the others on growing
    ``shares`` of them; ends early when ``patience`` generations in a row brought no better subnet. Each generation
    looks at the best paths of ``draws`` draws from the belief and at ``mutations`` of the best subnets so far;
    ``optimism``: number of standard deviations that count for a subnet.

    Raises:
        UsageError: a setting that makes no sense.
    """

    generations: int = 60
    group: int = 8
    draws: int = 6
    mutations: int = 120
    parents: int = 12
    optimism: float = 1.0
    shares: tuple[float, ...] = (0.125, 0.25, 1.0)
    patience: int = 20

    def __post_init__(self) -> None:
        if min(self.generations, self.group, self.draws, self.parents, self.patience) < 1:
            raise UsageError("generations, group, draws, parents and patience must be at least 1")
        if self.mutations < 0 or self.optimism < 0:
            raise UsageError("mutations and optimism must be at least 0")
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise UsageError("shares must lie above 0 and at most at 1")

    def search(self, problem: SearchProblem) -> SearchResult:
        """See the port. Deterministic for the problem's random generator, unless the time limit ends it.

        1. order the samples, and evaluate the path that the distillation errors favour, so that there is an answer;
        2. start the best path so far with each added block alone; 3. fit the model to what is expected of all that was
        evaluated (``expectation``), evaluate the most promising subnets; again, as long as it finds better ones; 4. fit
        the model to all that was observed; 5. advance the most promising subnets, known and new; again from 4;
        6. evaluate what the model favours at latencies near the budget, for the pool; 7. choose by expectation.
        """
        cheapest = require_feasible(problem.supernet, problem.cost_model, problem.budget)
        run = SearchRun(problem)
        race, model = Race(run, self.shares), AdditiveModel(problem.supernet)
        with problem.progress.task("search", self.generations) as task, suppress(_Stopped):
            self._start(run, race, model, cheapest)
            self._sweep(run, race)
            proposals = _Proposals(self, run)
            self._follow_expectations(run, race, model, proposals, task)
            self._follow_observations(run, race, model, proposals, task)
            _require(run.evaluate([cheapest, *_near_budget(model.fit(race.observations()), problem)]))
        return run.result()

    @staticmethod
    def _start(run: SearchRun, race: Race, model: AdditiveModel, cheapest: Subnet) -> None:
        """Order the samples and evaluate the path that the distillation errors favour, also if rungs took all the time.

        Where every rung within the budget is bad, it is often far better.
        """
        problem = run.problem
        first = _best_by(model.fit([]), problem, problem.budget) or cheapest
        _require(race.begin() and run.evaluate([first], at_any_time=True) and not run.check_stop())

    @staticmethod
    def _sweep(run: SearchRun, race: Race) -> None:
        """Start the best path so far with each added block alone, so that all blocks have been looked at once."""
        best = run.ranked()[0].subnet
        swapped = [one for one in with_each_block(run.problem.supernet, best) if one not in run.pool]
        _require(race.advance(swapped) and not run.check_stop())

    def _follow_observations(
        self, run: SearchRun, race: Race, model: AdditiveModel, proposals: _Proposals, task: Task
    ) -> None:
        """Advance the most promising subnets by all that was observed, until patience or generations are exhausted."""
        while run.generations < self.generations and run.stale < self.patience:
            group = proposals.group(model.fit(race.observations()))
            if not group:
                return
            advanced = race.advance(group) and not run.check_stop()
            run.finish_generation(task)
            _require(advanced)

    def _follow_expectations(
        self, run: SearchRun, race: Race, model: AdditiveModel, proposals: _Proposals, task: Task
    ) -> None:
        """Start the most promising subnets by expected accuracy, as long as that finds better ones.

        Expected accuracies on the first share suffice: these are the samples on which subnets differ. The best of each
        generation is evaluated on all samples, so that there is a result whenever time is up.
        """
        evaluator, samples, stale = run.problem.evaluator, race.first, 0
        best: Subnet | None = None
        while stale < _EXPECTED_PATIENCE and run.generations < self.generations:
            looked_at = [*run.pool, *run.started]
            expected = expected_accuracies(evaluator, looked_at, samples)
            odds = np.array([log_odds(share * samples.stop, samples.stop) for share in expected.tolist()])
            leader = max(zip(odds, looked_at, strict=True), key=lambda one: (run.fits(one[1]), one[0]))[1]
            group = proposals.group(model.fit(_expectations(looked_at, odds, model)), started=False)
            if not group:
                break
            _require(run.evaluate([leader]) and race.advance(group) and not run.check_stop())
            run.finish_generation(task)
            now = dict(zip(looked_at, expected.tolist(), strict=True))
            if best is None or now[leader] > now[best] + _EXPECTED_GAIN / samples.stop:
                best, stale = leader, 0
            else:
                stale += 1
        run.stale = 0


class _Stopped(Exception):
    """The search was cancelled or ran out of time; its result is the best so far."""


def _require(going: bool) -> None:
    if not going:
        raise _Stopped


@dataclass(frozen=True)
class _Expectation:
    """Log odds that are expected of a subnet, as an observation."""

    subnet: Subnet
    log_odds: float
    variance: float


def _expectations(subnets: Sequence[Subnet], odds: npt.NDArray[np.float64], model: AdditiveModel) -> list[_Expectation]:
    """Expected log odds of subnets as observations, relative to the best, stretched to at least the prior mean's range.

    The belief's spreads are made for that range.
    """
    stretch = max(np.ptp(model.prior_mean(subnets)) / (np.ptp(odds) or 1.0), 1.0)
    below = stretch * (odds.max() - odds)
    variances = _EXPECTED_VARIANCE + (_EXPECTED_SCATTER * below) ** 2
    return [_Expectation(*one) for one in zip(subnets, -below, variances, strict=True)]


class _Proposals:
    """Source of the subnets that a generation advances."""

    def __init__(self, settings: BayesianPathSearch, run: SearchRun) -> None:
        problem = run.problem
        self._settings, self._run, self._problem = settings, run, problem
        fitting = within_budget(problem.supernet, problem.cost_model, problem.budget)
        self._listed: list[Subnet] = []
        if subnet_count(problem.supernet) <= LISTING_LIMIT:
            self._listed = fitting.draw(count=LISTING_LIMIT, random=problem.random)
        low_ms = max(fitting.low_ms, fitting.high_ms * (1 - _WINDOW_RATIO))
        self._nearby = Neighbourhood(problem.supernet, problem.cost_model, problem.budget, low_ms, fitting.high_ms)

    def group(self, belief: Belief, *, started: bool = True) -> list[Subnet]:
        """The unfinished subnets of the highest optimistic estimate; empty if all are finished.

        They are new, or ``started`` too.
        """
        settings, problem, pool = self._settings, self._problem, self._run.pool
        open_ = dict.fromkeys([*self._run.started, *self._listed])
        for value in (belief.values(), *(belief.draw(problem.random) for _ in range(settings.draws))):
            path = best_path(problem.supernet, problem.cost_model, problem.budget, value)
            if path is not None:
                open_[path] = None
        parents = self._best(belief, [*open_, *pool], settings.parents)
        for number in range(settings.mutations):
            child = nearby_mutate(self._nearby, parents[number % len(parents)], random=problem.random)
            if child is not None:
                open_[child] = None
        done = pool.keys() if started else pool.keys() | self._run.started.keys()
        return self._best(belief, [one for one in open_ if one not in done and self._run.fits(one)], settings.group)

    def _best(self, belief: Belief, subnets: list[Subnet], count: int) -> list[Subnet]:
        if not subnets:
            return []
        mean, deviation = belief.predict(subnets)
        order = np.argsort(-(mean + self._settings.optimism * deviation), kind="stable")
        return [subnets[place] for place in order[:count]]


def _best_by(belief: Belief, problem: SearchProblem, budget: Budget) -> Subnet | None:
    return best_path(problem.supernet, problem.cost_model, budget, belief.values())


def _near_budget(belief: Belief, problem: SearchProblem) -> list[Subnet]:
    """The model's best subnets at latencies a little below and above the budget, for a slower or faster device."""
    if problem.budget.latency_ms is None:
        return []
    limits = [Budget(problem.budget.latency_ms * ratio, problem.budget.memory_mb) for ratio in _OTHER_BUDGETS]
    found = [_best_by(belief, problem, limit) for limit in limits]
    return [subnet for subnet in found if subnet is not None]
