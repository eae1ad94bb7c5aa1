"""State that all strategies share: the pool, the best so far, elapsed time and the stop reason."""

from __future__ import annotations

from collections.abc import Iterable

from device_sdk.progress import Task
from device_sdk.search.port import (
    Candidate,
    EvaluationStopped,
    SearchProblem,
    SearchResult,
    Stopped,
    best_within,
    by_expected_accuracy,
)
from device_sdk.supernet.plan import Plan, Subnet


class SearchRun:
    """The state of one search.

    ``pool``: candidates evaluated on all samples, by subnet, in evaluation order, the problem's ``known`` ones first.
    ``started``: subnets that a racing strategy evaluated on part of the samples, with their number. ``generations``
    counts groups, ``stale`` those since the best subnet changed.
    """

    def __init__(self, problem: SearchProblem) -> None:
        self.problem = problem
        self.pool: dict[Subnet, Candidate] = {one.subnet: one for one in problem.known}
        self.generations = 0
        self.stale = 0
        self.stopped: Stopped = "done"
        self.started: dict[Subnet, int] = {}
        self._best: Candidate | None = None
        self._started_s = problem.clock()

    def evaluate(self, subnets: Iterable[Subnet]) -> bool:
        """Evaluate the new subnets as one group and add them to the pool; False, adding none, if it was stopped."""
        new = [subnet for subnet in dict.fromkeys(subnets) if subnet not in self.pool]
        if not new:
            return True
        try:
            accuracies = self.problem.evaluator.accuracies(new, should_stop=self.check_stop)
        except EvaluationStopped:
            return False
        for subnet, accuracy in zip(new, accuracies, strict=True):
            self.started.pop(subnet, None)
            self.pool[subnet] = Candidate(Plan(subnet), self.problem.cost_model.cost(subnet), accuracy)
        return True

    def finish_generation(self, task: Task) -> None:
        """Count the generation, update ``stale``, and report the best."""
        best = best_within(self.pool.values(), self.problem.budget)
        self.generations += 1
        self.stale = self.stale + 1 if best == self._best else 0
        self._best = best
        task.advance()
        if best is not None:
            task.note(f"best {best.accuracy:.2%} at {best.cost.latency_ms:.3g} ms")

    def ranked(self) -> list[Candidate]:
        """The pool, best first; candidates over the budget come after all that fit."""
        fits = self.problem.budget.fits
        return sorted(self.pool.values(), key=lambda item: (not fits(item.cost), by_expected_accuracy(item)))

    def check_stop(self) -> bool:
        """Record and return whether the search must stop: cancelled, or out of time with a non-empty pool."""
        if self.problem.cancelled():
            self.stopped = "cancelled"
        elif self.pool and self._out_of_time():
            self.stopped = "time limit"
        return self.stopped != "done"

    def _out_of_time(self) -> bool:
        limit_s = self.problem.time_limit_s
        return limit_s is not None and self.problem.clock() - self._started_s >= limit_s

    def result(self) -> SearchResult:
        """The result so far."""
        pool = tuple(self.pool.values())
        return SearchResult(
            best=best_within(pool, self.problem.budget),
            pool=pool,
            subnets_evaluated=len(self.pool) + len(self.started),
            generations=self.generations,
            seconds=self.problem.clock() - self._started_s,
            stopped=self.stopped,
        )
