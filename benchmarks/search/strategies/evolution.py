"""Regularised evolution: the oldest member is removed, regardless of fitness (Real et al., AAAI 2019, Algorithm 1)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from device_sdk.errors import UsageError
from device_sdk.search.nearby import Neighbourhood, mutate, require_feasible, within_budget
from device_sdk.search.port import SearchProblem, SearchResult, by_expected_accuracy
from device_sdk.search.race import SearchRun
from device_sdk.supernet.plan import Subnet


@dataclass(frozen=True, kw_only=True)
class RegularisedEvolution:
    """``population`` random subnets within the budget; then the best of ``tournament`` random ones is mutated.

    ``children`` are made and evaluated at a time, as by parallel workers, so that they share work; as many of the
    oldest are removed. Mutations over the budget are drawn again; latency is not otherwise used. At most
    ``generations`` groups.

    Raises:
        UsageError: a setting is out of range.
    """

    generations: int = 40
    population: int = 48
    tournament: int = 12
    children: int = 8

    def __post_init__(self) -> None:
        if min(self.generations, self.population, self.tournament, self.children) < 1:
            raise UsageError("generations, population, tournament and children must be at least 1")

    def search(self, problem: SearchProblem) -> SearchResult:
        """See the port."""
        cheapest = require_feasible(problem.supernet, problem.cost_model, problem.budget)
        fitting = within_budget(problem.supernet, problem.cost_model, problem.budget)
        run = SearchRun(problem)
        with problem.progress.task("search", self.generations) as task:
            going = not run.check_stop() and run.evaluate([cheapest])
            group = [cheapest, *fitting.draw(count=self.population - 1, random=problem.random, seen=[cheapest])]
            alive = deque(group, maxlen=max(len(group), self.children))
            while going and run.generations < self.generations and run.evaluate(group):
                run.finish_generation(task)
                group = self._children(run, alive, fitting)
                alive.extend(group)
                going = not run.check_stop()
        return run.result()

    def _children(self, run: SearchRun, alive: deque[Subnet], fitting: Neighbourhood) -> list[Subnet]:
        random = run.problem.random
        made = []
        for _ in range(self.children):
            drawn = [random.choice(alive) for _ in range(self.tournament)]
            parent = min((run.pool[subnet] for subnet in drawn), key=by_expected_accuracy).subnet
            made.append(mutate(fitting, parent, random=random) or parent)
        return made
