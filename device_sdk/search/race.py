"""Racing: subnets are evaluated on a growing share of the samples, and what looks hopeless goes no further."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.search.additive import Observation, unshared_noise
from device_sdk.search.port import EvaluationStopped
from device_sdk.search.run import SearchRun
from device_sdk.supernet.plan import Subnet

_COMPARED = 32  # finished candidates from which the rest of the others is guessed: the best
_REMEMBERED = 128  # unfinished candidates of one stage that are still observed: the latest


class Race:
    """Advances subnets over ``shares`` of the samples, in whole batches; the last is all of them.

    ``begin`` puts the samples first that tell most. Who advances is the strategy's choice; those that finish are in
    the run's pool, the others in its ``started``.
    """

    def __init__(self, run: SearchRun, shares: Sequence[float]) -> None:
        self._run = run
        self._evaluator = run.problem.evaluator
        self._count = run.problem.evaluator.sample_count
        batch = run.problem.evaluator.batch
        wanted = [max(1, round(share * self._count)) for share in shares]
        self._stages = sorted({min(math.ceil(one / batch) * batch, self._count) for one in wanted} | {self._count})

    @property
    def first(self) -> slice:
        """The samples that everything is evaluated on that is started."""
        return slice(0, self._stages[0])

    def begin(self) -> bool:
        """Put the samples that tell most first; False if that was stopped."""
        try:
            self._evaluator.order_by_margin(should_stop=self._run.check_stop)
        except EvaluationStopped:
            return False
        return True

    def advance(self, subnets: Sequence[Subnet]) -> bool:
        """Evaluate each on its next share, those on the same one as a group; False if the evaluation was stopped."""
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
                self._evaluator.correct(group, slice(0, stage), should_stop=self._run.check_stop)
            except EvaluationStopped:
                return False
            started.update(dict.fromkeys(group, stage))
        return True

    def observations(self) -> list[Observation]:
        """What is known of subnets, all that are finished and the latest of the others.

        What the others would answer on the rest of the samples is guessed from what the finished ones did.
        """
        finished = list(self._run.pool.values())
        best = sorted(finished, key=lambda one: -one.accuracy)[:_COMPARED]
        rows = self._evaluator.correct([one.subnet for one in best], slice(None))
        noise = unshared_noise(rows) if len(best) > 1 else 1.0
        found = [Observation(one.subnet, one.accuracy * self._count, self._count, noise) for one in finished]
        for stage in self._stages[:-1]:
            there = [subnet for subnet, done in self._run.started.items() if done == stage][-_REMEMBERED:]
            correct = self._evaluator.correct(there, slice(0, stage)).sum(axis=1)
            rest, unseen = _guessed(rows[:, stage:])
            found += [
                Observation(subnet, float(count) + rest, self._count, noise, unseen)
                for subnet, count in zip(there, correct, strict=True)
            ]
        return found


def _guessed(correct: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Mean and variance of the number of correct answers of one more subnet, after those of others [subnets, samples]."""
    average = (correct.sum() + 0.5) / (correct.size + 1)
    per_sample = (correct.sum(axis=0) + average) / (len(correct) + 1)
    return float(per_sample.sum()), float((per_sample * (1 - per_sample)).sum())
