"""What is to be expected of candidates on samples that the search did not see.

The best of many on a few hundred samples is partly lucky. The additive model takes the luck back: it draws what was
measured towards what the other candidates say of the same edges, the further the fewer the samples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from device_sdk.search.additive import AdditiveModel, Observation, log_odds, unshared_noise
from device_sdk.search.port import SearchProblem, SearchResult, best_within

_COMPARABLE = 2.0  # log odds below the best


def with_expectations(result: SearchResult, problem: SearchProblem) -> SearchResult:
    """``result`` with the ``expected`` accuracy of its candidates, and the best by it. Costs no evaluation.

    Candidates that are far worse than the best say nothing about it (a sum over edges does not reach so far), and
    nothing more is expected of them than was measured. Raises what the evaluator raises.
    """
    if not result.pool:
        return result
    samples = problem.evaluator.sample_count
    best = max(log_odds(one.accuracy * samples, samples) for one in result.pool)
    near = [one for one in result.pool if log_odds(one.accuracy * samples, samples) >= best - _COMPARABLE]
    subnets = [one.subnet for one in near]
    noise = unshared_noise(problem.evaluator.right(subnets, slice(None))) if len(near) > 1 else 1.0
    observations = [Observation(one.subnet, one.accuracy * samples, samples, noise) for one in near]
    predicted, _ = AdditiveModel(problem.supernet).fit(observations).predict(subnets)
    expected = dict(zip(subnets, (1 / (1 + np.exp(-predicted))).tolist(), strict=True))
    pool = tuple(replace(one, expected=expected.get(one.subnet, one.accuracy)) for one in result.pool)
    return replace(result, pool=pool, best=best_within(pool, problem.budget))
