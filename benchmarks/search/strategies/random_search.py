"""Random search: the baseline for all other strategies."""

from __future__ import annotations

from dataclasses import dataclass

from device_sdk.errors import UsageError
from device_sdk.search.nearby import require_feasible, within_budget
from device_sdk.search.port import SearchProblem, SearchResult
from device_sdk.search.race import SearchRun


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Distinct subnets within the budget, uniformly at random: ``generations`` groups of ``group``.

    Raises:
        UsageError: a setting is out of range.
    """

    generations: int = 16
    group: int = 24

    def __post_init__(self) -> None:
        if min(self.generations, self.group) < 1:
            raise UsageError("generations and group must be at least 1")

    def search(self, problem: SearchProblem) -> SearchResult:
        """See the port."""
        cheapest = require_feasible(problem.supernet, problem.cost_model, problem.budget)
        fitting = within_budget(problem.supernet, problem.cost_model, problem.budget)
        run = SearchRun(problem)
        with problem.progress.task("search", self.generations) as task:
            group = [cheapest]
            while group and not run.check_stop() and run.evaluate(group) and run.generations < self.generations:
                if len(run.pool) > 1:
                    run.finish_generation(task)
                group = fitting.draw(count=self.group, random=problem.random, seen=run.pool.keys())
        return run.result()
