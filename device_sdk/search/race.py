"""Racing: subnets are evaluated on a growing share of the samples, and unpromising ones are dropped early."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.search.additive import Observation, unshared_noise
from device_sdk.search.port import EvaluationStopped
from device_sdk.search.run import SearchRun
from device_sdk.supernet.plan import Subnet

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
                self._evaluator.correct(group, slice(0, stage), should_stop=self._run.check_stop)
            except EvaluationStopped:
                return False
            started.update(dict.fromkeys(group, stage))
        return True

    def observations(self) -> list[Observation]:
        """Observations of all finished subnets and of the latest unfinished ones.

        The remaining answers of an unfinished subnet are extrapolated from those of the best finished ones.
        """
        finished = list(self._run.pool.values())
        best = sorted(finished, key=lambda candidate: -candidate.accuracy)[:_COMPARED]
        rows = self._evaluator.correct([candidate.subnet for candidate in best], slice(None))
        noise = unshared_noise(rows) if len(best) > 1 else 1.0
        observations = [Observation(c.subnet, c.accuracy * self._count, self._count, noise) for c in finished]
        for stage in self._stages[:-1]:
            at_stage = [subnet for subnet, done in self._run.started.items() if done == stage][-_REMEMBERED:]
            correct = self._evaluator.correct(at_stage, slice(0, stage)).sum(axis=1)
            rest, unseen = _extrapolated(rows[:, stage:])
            observations += [
                Observation(subnet, float(count) + rest, self._count, noise, unseen)
                for subnet, count in zip(at_stage, correct, strict=True)
            ]
        return observations


def _extrapolated(correct: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Mean and variance of another subnet's number of correct answers, given those of others [subnets, samples]."""
    average = (correct.sum() + 0.5) / (correct.size + 1)
    per_sample = (correct.sum(axis=0) + average) / (len(correct) + 1)
    return float(per_sample.sum()), float((per_sample * (1 - per_sample)).sum())
