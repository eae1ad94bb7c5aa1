"""What is to be expected of candidates on samples that the search did not see.

The best of many on a few hundred samples is mostly lucky: candidates differ by less than such a number of right answers
can tell. How far their answers are from the full model's differs far more than it varies with the samples. A line
from the one to the other takes the luck back: what a candidate has measured above the line counts as far as candidates
lie off the line by more than chance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from device_sdk.search.additive import Observation, log_odds, unshared_noise
from device_sdk.search.port import SearchProblem, SearchResult, best_within

Floats = npt.NDArray[np.float64]

_COMPARABLE = 2.0  # log odds below the best
_SLOPE_MEAN, _SLOPE_SPREAD = -0.4, 0.25  # of the log odds over the logarithm of the distance
_OWN_SPREADS = (0.02, 0.05, 0.1, 0.2, 0.4)  # log odds by which candidates lie off the line: those that are tried
_FLAT = 1e-6  # how sure the level of the line is before anything was measured
_NEAREST = 0.05  # of the median distance: what is nearer is as good as the full model itself


@dataclass(frozen=True)
class _Line:
    """Expected log odds [candidates], and how likely the measured ones are, up to a constant."""

    expected: Floats
    log_likelihood: float


def with_expectations(result: SearchResult, problem: SearchProblem) -> SearchResult:
    """``result`` with the ``expected`` accuracy of its candidates, and the best by it. Costs no evaluation.

    Candidates that are far worse than the best say nothing about it, and nothing more is expected of them than was
    measured. Raises what the evaluator raises.
    """
    if not result.pool:
        return result
    samples = problem.evaluator.sample_count
    best = max(log_odds(one.accuracy * samples, samples) for one in result.pool)
    near = [one for one in result.pool if log_odds(one.accuracy * samples, samples) >= best - _COMPARABLE]
    subnets = [one.subnet for one in near]
    noise = unshared_noise(problem.evaluator.right(subnets, slice(None))) if len(near) > 1 else 1.0
    observations = [Observation(one.subnet, one.accuracy * samples, samples, noise) for one in near]
    log_distances = _log_distances(problem.evaluator.distances(subnets))
    line = max((_line(observations, log_distances, own) for own in _OWN_SPREADS), key=lambda one: one.log_likelihood)
    expected = dict(zip(subnets, (1 / (1 + np.exp(-line.expected))).tolist(), strict=True))
    pool = tuple(replace(one, expected=expected.get(one.subnet, one.accuracy)) for one in result.pool)
    return replace(result, pool=pool, best=best_within(pool, problem.budget))


def _log_distances(distances: Floats) -> Floats:
    """Their logarithms around a mean of 0."""
    least = _NEAREST * float(np.median(distances)) or 1.0
    logarithms: Floats = np.log(np.maximum(distances, least))
    return logarithms - logarithms.mean()


def _line(observations: list[Observation], log_distances: Floats, own: float) -> _Line:
    """Bayesian regression; candidates lie off the line by ``own`` (standard deviation) beside the sampling noise."""
    observed = np.array([one.log_odds for one in observations])
    weights = 1 / (np.array([one.variance for one in observations]) + own**2)
    features = np.stack([np.ones_like(log_distances), log_distances], axis=1)
    prior = np.diag([_FLAT, _SLOPE_SPREAD**-2])
    precision = features.T @ (weights[:, None] * features) + prior
    level, slope = np.linalg.solve(precision, features.T @ (weights * observed) + prior @ [0.0, _SLOPE_MEAN])
    line = level + slope * log_distances
    above = observed - line
    likelihood = 0.5 * np.log(weights).sum() - 0.5 * (weights * above**2).sum()
    likelihood -= 0.5 * ((slope - _SLOPE_MEAN) / _SLOPE_SPREAD) ** 2
    return _Line(line + own**2 * weights * above, float(likelihood))
