"""One search: its pool, its time, and shares of samples that grow for promising subnets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.progress import Task
from device_sdk.search.additive import Observation, smoothed, unshared_noise
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

    def evaluate(self, subnets: Iterable[Subnet], *, at_any_time: bool = False) -> bool:
        """Evaluate the new subnets as one group and add them to the pool; False, adding none, if it was stopped.

        ``at_any_time``: the time limit does not stop it.
        """
        new = [subnet for subnet in dict.fromkeys(subnets) if subnet not in self.pool]
        if not new:
            return True
        try:
            stop = self._check_cancelled if at_any_time else self.check_stop
            accuracies = self.problem.evaluator.accuracies(new, should_stop=stop)
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

    def fits(self, subnet: Subnet) -> bool:
        """True if the predicted cost of ``subnet`` fits the budget."""
        return self.problem.budget.fits(self.problem.cost_model.cost(subnet))

    def ranked(self) -> list[Candidate]:
        """The pool, best first; candidates over the budget come after all that fit."""
        fits = self.problem.budget.fits
        return sorted(self.pool.values(), key=lambda item: (not fits(item.cost), by_expected_accuracy(item)))

    def check_stop(self) -> bool:
        """Record and return whether the search must stop: cancelled, or out of time with a non-empty pool."""
        if not self._check_cancelled() and self.pool and self._out_of_time():
            self.stopped = "time limit"
        return self.stopped != "done"

    def _check_cancelled(self) -> bool:
        if self.problem.cancelled():
            self.stopped = "cancelled"
        return self.stopped == "cancelled"

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


_COMPARED = 32  # best finished candidates, from which the unfinished ones are extrapolated
_REMEMBERED = 128  # latest unfinished candidates per stage that are used as observations


class Race:
    """Advances subnets over ``shares`` of the samples, in whole batches; the last stage is all samples.

    ``begin`` sorts the samples by margin. The strategy chooses the subnets to advance. Finished subnets are in the
    run's ``pool``, the others in its ``started``.
    """

    def __init__(self, run: SearchRun, shares: Sequence[float]) -> None:
        self._run = run
        self._evaluator = run.problem.evaluator
        self._count = run.problem.evaluator.sample_count
        batch = run.problem.evaluator.batch
        counts = [max(1, round(share * self._count)) for share in shares]
        self._stages = sorted({min(math.ceil(n / batch) * batch, self._count) for n in counts} | {self._count})

    @property
    def first(self) -> slice:
        """The samples of the first stage."""
        return slice(0, self._stages[0])

    def begin(self) -> bool:
        """Sort the samples by margin; False if that was stopped."""
        try:
            self._evaluator.order_by_margin(should_stop=self._run.check_stop)
        except EvaluationStopped:
            return False
        return True

    def advance(self, subnets: Sequence[Subnet]) -> bool:
        """Evaluate each subnet on its next stage, one group per stage; False if the evaluation was stopped."""
        started = self._run.started
        groups: dict[int, list[Subnet]] = {}
        for subnet in subnets:
            done = started.get(subnet, 0)
            groups.setdefault(next(stage for stage in self._stages if stage > done), []).append(subnet)
        for stage, group in sorted(groups.items()):
            if stage == self._count:
                if not self._run.evaluate(group):
                    return False
                continue
            try:
                self._evaluator.scores(group, slice(0, stage), should_stop=self._run.check_stop)
            except EvaluationStopped:
                return False
            started.update(dict.fromkeys(group, stage))
        return True

    def observations(self) -> list[Observation]:
        """Observations of all finished subnets and of the latest unfinished ones.

        The remaining answers of an unfinished subnet are extrapolated from those of the best finished ones.
        """
        finished = list(self._run.pool.values())
        chances = smoothed(self._evaluator, [candidate.subnet for candidate in finished], slice(None))
        counts = chances.sum(axis=1)
        rows = chances[np.argsort(-counts, kind="stable")[:_COMPARED]]
        noise = unshared_noise(rows) if len(rows) > 1 else 1.0
        observations = [
            Observation(one.subnet, count, self._count, noise)
            for one, count in zip(finished, counts.tolist(), strict=True)
        ]
        for stage in self._stages[:-1]:
            at_stage = [subnet for subnet, done in self._run.started.items() if done == stage][-_REMEMBERED:]
            if at_stage:
                begun = smoothed(self._evaluator, at_stage, slice(0, stage)).sum(axis=1)
                rest, unseen = _extrapolated(rows[:, stage:])
                observations += [
                    Observation(subnet, count + rest, self._count, noise, unseen)
                    for subnet, count in zip(at_stage, begun.tolist(), strict=True)
                ]
        return observations


def _extrapolated(chances: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Mean and variance of another subnet's number of correct answers, given chances of others [subnets, samples]."""
    average = (chances.sum() + 0.5) / (chances.size + 1)
    per_sample = (chances.sum(axis=0) + average) / (len(chances) + 1)
    squares = ((chances**2).sum(axis=0) + average) / (len(chances) + 1)
    return float(per_sample.sum()), float((squares - per_sample**2).sum())
