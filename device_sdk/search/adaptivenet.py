"""AdaptiveNet's search: evolution near the latency budget, evaluated in groups (AdaptiveNet Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from device_sdk.errors import UsageError
from device_sdk.graph import Subnet
from device_sdk.progress import Task
from device_sdk.search.feasibility import require_feasible
from device_sdk.search.nearby import Neighbourhood, nearby_init, nearby_mutate
from device_sdk.search.port import Candidate, SearchProblem, SearchResult, Stopped, best_within, rank

_TRIES_PER_CHILD = 10


@dataclass(frozen=True, kw_only=True)
class AdaptiveNetSearch:
    """Evolutionary search with NearbyInit, NearbyMutate and group evaluation.

    ``generations`` groups of ``population`` subnets at most; ends early when nothing new is left near the
    budget or ``patience`` generations in a row brought no better subnet. ``window_ratio`` is ΔT / T.

    Raises:
        UsageError: a setting that makes no sense.
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

        1. evaluate the cheapest subnet that fits, so that there always is an answer; 2. NearbyInit, and the
        original path if it fits; 3. evaluate the group; 4. NearbyMutate the better half; again from 3.
        """
        cheapest = require_feasible(problem.supernet, problem.cost_model, problem.budget)
        run = _Run(problem)
        with problem.progress.task("search", self.generations) as task:
            if not run.ended():
                run.evaluate([cheapest])
                self._evolve(run, task)
        return run.result()

    def _evolve(self, run: _Run, task: Task) -> None:
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
        while group and not run.ended() and run.generations < self.generations:
            run.evaluate(group)
            run.finish_generation(task)
            if run.stale >= self.patience:
                break
            group = self._filled([], run, nearby)

    def _filled(self, start: list[Subnet], run: _Run, nearby: Neighbourhood) -> list[Subnet]:
        """``start`` filled up with new children of the better half, if these are too few with fresh draws."""
        random = run.problem.random
        parents = run.parents(self.population // 2 or 1)
        group = dict.fromkeys(start[: self.population])
        for _ in range(_TRIES_PER_CHILD * self.population):
            if len(group) == self.population:
                return list(group)
            child = nearby_mutate(nearby, random.choice(parents).subnet, random=random)
            if child is not None and child not in run.pool:
                group[child] = None
        missing = self.population - len(group)
        return [*group, *nearby.draw(count=missing, random=random, seen=run.pool.keys() | group.keys())]


@dataclass
class _Run:
    """The state of one search."""

    problem: SearchProblem
    pool: dict[Subnet, Candidate] = field(default_factory=dict)
    generations: int = 0
    stale: int = 0  # generations since the best subnet changed
    stopped: Stopped = "done"

    def __post_init__(self) -> None:
        self._start = self.problem.clock()
        self._best: Candidate | None = None

    def evaluate(self, subnets: list[Subnet]) -> None:
        """Evaluate a group and add it to the pool."""
        accuracies = self.problem.evaluator.accuracies(subnets)
        for subnet, accuracy in zip(subnets, accuracies, strict=True):
            self.pool[subnet] = Candidate(subnet, self.problem.cost_model.cost(subnet), accuracy)

    def finish_generation(self, task: Task) -> None:
        """Count the generation, note whether it brought a better subnet, and report it."""
        best = best_within(self.pool.values(), self.problem.budget)
        self.generations += 1
        self.stale = self.stale + 1 if best == self._best else 0
        self._best = best
        task.advance()
        if best is not None:
            task.note(f"best {best.accuracy:.2%} at {best.cost.latency_ms:.3g} ms")

    def parents(self, count: int) -> list[Candidate]:
        """The ``count`` best of all evaluated so far, those that fit the budget first."""
        budget = self.problem.budget
        return sorted(self.pool.values(), key=lambda one: (not budget.fits(one.cost), rank(one)))[:count]

    def ended(self) -> bool:
        """Whether somebody cancelled, or the time is up and something was evaluated."""
        if self.problem.cancelled():
            self.stopped = "cancelled"
        elif self.pool and self._out_of_time():
            self.stopped = "time limit"
        return self.stopped != "done"

    def _out_of_time(self) -> bool:
        limit_s = self.problem.time_limit_s
        return limit_s is not None and self.problem.clock() - self._start >= limit_s

    def result(self) -> SearchResult:
        """What was found so far."""
        pool = tuple(self.pool.values())
        return SearchResult(
            best=best_within(pool, self.problem.budget),
            pool=pool,
            subnets_evaluated=len(pool),
            generations=self.generations,
            seconds=self.problem.clock() - self._start,
            stopped=self.stopped,
        )
