"""What is to be expected of candidates on samples that the search did not see.

The best of many on a few hundred samples is mostly lucky: candidates differ by less than such a number of correct answers
can tell, and near copies of a lucky one are lucky together. How far their answers are from the full model's varies far
less with the samples. A line through the full model, from that distance to the log odds of a correct answer, takes
the luck back: what a candidate has measured above the line counts as far as candidates lie off it by more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from device_sdk.search.additive import log_odds
from device_sdk.search.port import Evaluator, SearchProblem, SearchResult, best_within
from device_sdk.supernet.plan import Subnet

Floats = npt.NDArray[np.float64]
Right = npt.NDArray[np.bool_]

_COMPARABLE = 2.0  # log odds below the best
_SLOPE_MEAN, _SLOPE_SPREAD = 0.5, 1.0  # log odds that are lost at the median distance
_LINE_SAMPLES = (100_000, 10_000, 1_000, 100, 10)  # so many samples the line is worth: those that are tried
_FAR = 30.0  # deviations out, where the tail of a normal distribution is an exponential one
_OWN_LUCK = 0.25  # of a candidate's chance deviation, what it shares with no other
_LEAST_NOISE = 0.5  # correct answers, squared: candidates with the full model's answers are no certainty either
_BEND = 0.3  # of what candidates lie below the full model on average: how far the line is off for all of them


@dataclass(frozen=True)
class _Line:
    """Expected log odds above the full model's [candidates], whitened; how likely the measured ones are."""

    expected: Floats
    log_likelihood: float


def with_expected_accuracies(result: SearchResult, problem: SearchProblem) -> SearchResult:
    """``result`` with the ``expected`` accuracy of its candidates, and the best by it. Costs no evaluation.

    Raises what the evaluator raises.
    """
    if not result.pool:
        return result
    expected = expected_accuracies(problem.evaluator, [one.subnet for one in result.pool], slice(None))
    pool = tuple(replace(one, expected=value) for one, value in zip(result.pool, expected.tolist(), strict=True))
    return replace(result, pool=pool, best=best_within(pool, problem.budget))


def expected_accuracies(evaluator: Evaluator, subnets: Sequence[Subnet], samples: slice) -> Floats:
    """What is to be expected, on more samples like these, of subnets that were evaluated on ``samples``: [subnets].

    Subnets that are far worse than the best say nothing about it, and nothing more is expected of them than was
    measured. Raises what the evaluator raises.
    """
    correct = evaluator.correct(subnets, samples)
    measured = np.array([log_odds(float(row.sum()), len(row)) for row in correct])
    near = np.flatnonzero(measured >= measured.max() - _COMPARABLE)
    distances = evaluator.distances([subnets[place] for place in near.tolist()], samples)
    expected: Floats = correct.mean(axis=1)
    expected[near] = 1 / (
        1 + np.exp(-_expected_log_odds(correct[near], evaluator.full_model_correct()[samples], distances))
    )
    return expected


def _expected_log_odds(correct: Right, full: Right, distances: Floats) -> Floats:
    """[candidates], from which samples they get right [candidates, samples], and the full model [samples]."""
    samples = len(full)
    reference = log_odds(float(full.sum()), samples)
    above = np.array([log_odds(float(row.sum()), samples) for row in correct]) - reference
    relative = distances / (float(np.median(distances)) or 1.0)
    scatter = _scatter(correct, full)
    root = np.linalg.cholesky(scatter)
    far, seen = np.linalg.solve(root, np.stack([relative, above], axis=1)).T
    lines = [_line(far, seen, samples, worth) for worth in _LINE_SAMPLES]
    expected = root @ max(lines, key=lambda one: one.log_likelihood).expected
    bend, luck = (_BEND * above.mean()) ** 2, scatter.mean() / samples
    return reference + expected + bend / (bend + luck) * (above - expected).mean()


def _scatter(correct: Right, full: Right) -> Floats:
    """How log odds above the full model's vary with a sample that is drawn, and together: [candidates, candidates].

    Only answers that differ from the full model's make a difference, and candidates that differ on the same samples
    are lucky together.
    """
    differences = correct.astype(np.float64) - full
    together = differences @ differences.T
    together[np.diag_indices_from(together)] *= 1 / (1 - _OWN_LUCK)
    together[np.diag_indices_from(together)] += _LEAST_NOISE
    shares = (correct.sum(axis=1) + 0.5) / (len(full) + 1)
    slopes = shares * (1 - shares)  # correct answers per sample that one unit of log odds makes
    scatter: Floats = together / len(full) / np.outer(slopes, slopes)
    return scatter


def _line(distances: Floats, above: Floats, samples: int, worth: int) -> _Line:
    """Bayesian regression through the full model, of whitened distances and log odds [candidates].

    Candidates lie off the line as far as ``worth`` samples scatter.
    """
    variance = 1 / samples + 1 / worth
    precision = float(distances @ distances) / variance + _SLOPE_SPREAD**-2
    peak = (_SLOPE_MEAN * _SLOPE_SPREAD**-2 - float(distances @ above) / variance) / precision
    slope = _mean_above_0(peak, 1 / math.sqrt(precision))
    line = -slope * distances
    likelihood = -0.5 * ((above - line) ** 2).sum() / variance - 0.5 * len(above) * np.log(variance)
    likelihood -= 0.5 * ((slope - _SLOPE_MEAN) / _SLOPE_SPREAD) ** 2
    return _Line(line + samples / (samples + worth) * (above - line), float(likelihood))


def _mean_above_0(peak: float, deviation: float) -> float:
    """The mean of what would be normally distributed but cannot be negative.

    So the nearer of two is preferred also where everything that is far was lucky.
    """
    below = -peak / deviation
    if below > _FAR:
        return deviation / below
    density, above = math.exp(-0.5 * below**2) / math.sqrt(math.tau), 0.5 * math.erfc(below / math.sqrt(2))
    return peak + deviation * density / above
