"""AdaptiveNet's search: evolution near the latency budget, evaluated in groups (AdaptiveNet Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from device_sdk.errors import UsageError
from device_sdk.progress import Task
from device_sdk.search.nearby import Neighbourhood, nearby_init, nearby_mutate, require_feasible
from device_sdk.search.port import SearchProblem, SearchResult
from device_sdk.search.race import SearchRun
from device_sdk.supernet.plan import Subnet

_TRIES_PER_CHILD = 10


@dataclass(frozen=True, kw_only=True)
class AdaptiveNetSearch:
    """Evolutionary search with NearbyInit, NearbyMutate and group evaluation.

    At most ``generations`` groups of ``population`` subnets. Ends early when no new subnet is left near the budget, or
    after ``patience`` generations without a better subnet. ``window_ratio`` is ΔT / T.

    Raises:
        UsageError: a setting is out of range.
    """

    generations: int = 16
    population: int = 24
    window_ratio: float = 0.1
    patience: int = 5

    def __post_init__(self) -> None:
        if min(self.generations, self.population, self.patience) < 1:
            raise UsageError("generations, population and patience must be at least 1")
        if not 0 < self.window_ratio <= 1:
            raise UsageError(f"window_ratio is {self.window_ratio:g}; it must be above 0 and at most 1")

    def search(self, problem: SearchProblem) -> SearchResult:
        """See the port. Deterministic for the problem's random generator, unless the time limit ends it.

        1. evaluate the cheapest subnet that fits, so that a result always exists; 2. NearbyInit, and the original path
        if it fits; 3. evaluate the group; 4. NearbyMutate the better half; repeat from 3.
        """
        cheapest = require_feasible(problem.supernet, problem.cost_model, problem.budget)
        run = SearchRun(problem)
        with problem.progress.task("search", self.generations) as task:
            if not run.check_stop() and run.evaluate([cheapest]):
                self._evolve(run, task)
        return run.result()

    def _evolve(self, run: SearchRun, task: Task) -> None:
        problem = run.problem
        group, nearby = nearby_init(
            problem.supernet,
            problem.cost_model,
            problem.budget,
            window_ratio=self.window_ratio,
            count=self.population,
            random=problem.random,
        )
        original = problem.supernet.original
        if problem.budget.fits(problem.cost_model.cost(original)):
            group = [original, *group]
        group = self._filled([subnet for subnet in group if subnet not in run.pool], run, nearby)
        while group and not run.check_stop() and run.generations < self.generations:
            if not run.evaluate(group):
                break
            run.finish_generation(task)
            if run.stale >= self.patience:
                break
            group = self._filled([], run, nearby)

    def _filled(self, start: list[Subnet], run: SearchRun, nearby: Neighbourhood) -> list[Subnet]:
        """``start``, filled up with new children of the better half, then with fresh draws."""
        random = run.problem.random
        parents = run.ranked()[: self.population // 2 or 1]
        group = dict.fromkeys(start[: self.population])
        for _ in range(_TRIES_PER_CHILD * self.population):
            if len(group) == self.population:
                return list(group)
            child = nearby_mutate(nearby, random.choice(parents).subnet, random=random)
            if child is not None and child not in run.pool:
                group[child] = None
        missing = self.population - len(group)
        return [*group, *nearby.draw(count=missing, random=random, seen=run.pool.keys() | group.keys())]
