"""Simulated annealing: accepts every improvement, and losses with a probability that falls over time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from device_sdk.errors import UsageError
from device_sdk.search.nearby import mutate, require_feasible, within_budget
from device_sdk.search.port import SearchProblem, SearchResult
from device_sdk.search.race import SearchRun


@dataclass(frozen=True, kw_only=True)
class SimulatedAnnealing:
    """``steps`` mutations within the budget, one after the other, from a random start.

    A mutation that loses accuracy a is accepted with probability exp(-a / t). The temperature t falls geometrically
    from ``hot`` to ``cold``, in units of accuracy. Source: Kirkpatrick, Gelatt, Vecchi, Science 1983.

    Raises:
        UsageError: a setting is out of range.
    """

    steps: int = 384
    hot: float = 0.05
    cold: float = 0.002

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.cold <= self.hot:
            raise UsageError("steps must be at least 1, cold above 0 and hot at least cold")

    def search(self, problem: SearchProblem) -> SearchResult:
        """See the port."""
        cheapest = require_feasible(problem.supernet, problem.cost_model, problem.budget)
        fitting = within_budget(problem.supernet, problem.cost_model, problem.budget)
        run = SearchRun(problem)
        random = problem.random
        with problem.progress.task("search", self.steps) as task:
            going = not run.check_stop() and run.evaluate([cheapest])
            at = next(iter(fitting.draw(count=1, random=random)), cheapest)
            going = going and not run.check_stop() and run.evaluate([at])
            for step in range(self.steps if going else 0):
                new = mutate(fitting, at, random=random) or at
                if run.check_stop() or not run.evaluate([new]):
                    break
                if self._accepted(run.pool[new].accuracy - run.pool[at].accuracy, step, random.uniform()):
                    at = new
                run.finish_generation(task)
        return run.result()

    def _accepted(self, gain: float, step: int, ticket: float) -> bool:
        temperature = self.hot * (self.cold / self.hot) ** (step / max(self.steps - 1, 1))
        return gain >= 0 or ticket < math.exp(gain / temperature)
