"""Plans judged as they answer in use, and timed in turns on real samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.support.judged import Right
from benchmarks.sure.networks import Samples
from device_sdk.execution.loaded_plan import AtSize
from device_sdk.execution.outcome import BY_SECOND
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.answer import CASCADE
from device_sdk.supernet.plan import Plan
from pathweave import AdaptiveModel

_TIMED, _ROUNDS = 60, 5  # samples, and calls of each plan with each


@dataclass(frozen=True)
class Judged:
    """Correctness on each sample [count], the share that the second path answers, mean latency over the full model's.

    The mean weighs the samples that were timed by the share of hard ones among all.
    """

    right: Right
    share_second: float
    ratio: float


def judged_plans(model: AdaptiveModel, plans: Sequence[Plan], samples: Samples) -> dict[Plan, Judged]:
    """Each plan on all ``samples``, one call each; and its latency in turns with all others on some of them."""
    every = list(dict.fromkeys([Plan(model.bundle.supernet.original), *plans]))
    answers = {plan: _answers(model, plan, samples) for plan in every}
    means_ms = _means_ms(model, every, samples, {plan: share for plan, (_, share) in answers.items()})
    full_ms = means_ms[every[0]]
    return {plan: Judged(*answers[plan], means_ms[plan] / full_ms) for plan in every}


def _answers(model: AdaptiveModel, plan: Plan, samples: Samples) -> tuple[Right, float]:
    model.use(plan)
    answers = [model(image) for image in samples.images]
    right = np.array([int(one.output.argmax()) for one in answers]) == samples.labels
    return right, sum(one.source[0] == CASCADE for one in answers) / len(answers)


def _means_ms(
    model: AdaptiveModel, plans: Sequence[Plan], samples: Samples, shares: dict[Plan, float]
) -> dict[Plan, float]:
    """Milliseconds per sample, preparing an image for the first path left out, for the second included."""
    workspace = Workspace(model.bundle, OnnxRuntime(threads=1))
    loaded = [workspace.load_plan(plan) for plan in plans]
    inputs = samples.inputs(model.bundle)
    timed = {plan: [(0.0, False)] * 0 for plan in plans}
    try:
        for number in range(min(_TIMED, len(samples.labels))):
            one = np.array([number])

            def at_size(positions: npt.NDArray[np.int64], size: tuple[int, ...], one=one) -> np.ndarray:  # type: ignore[no-untyped-def]
                return inputs.subset(one).take(positions, size)

            resized: AtSize = at_size
            tensors = [inputs.take(one, plan.input_size) for plan in plans]
            calls = {
                str(at): partial(each.run, tensor, at_size=resized)
                for at, (each, tensor) in enumerate(zip(loaded, tensors, strict=True))
            }
            found = measure_interleaved(calls, rounds=_ROUNDS, warmup=1)
            for at, (plan, each) in enumerate(zip(plans, loaded, strict=True)):
                took_second = bool(each.run(tensors[at], at_size=resized).answered_by[0] == len(plan.exits) + BY_SECOND)
                timed[plan].append((found[str(at)].median_ms, took_second))
    finally:
        for each in loaded:
            each.close()
    return {plan: _weighed(timed[plan], shares[plan]) for plan in plans}


def _weighed(timed: Sequence[tuple[float, bool]], share: float) -> float:
    """The mean, if ``share`` of the samples took the second path."""
    easy, hard = ([ms for ms, second in timed if second is wanted] for wanted in (False, True))
    if not easy or not hard:
        return float(np.mean([ms for ms, _ in timed]))
    return (1 - share) * float(np.mean(easy)) + share * float(np.mean(hard))
