from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from device_sdk.random_source import SplitMix64
from device_sdk.search import Candidate, SearchResult, with_expected_accuracies
from device_sdk.search.additive import smoothed
from device_sdk.search.expectation import expected_accuracies
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Plan
from device_sdk.tasks.margins import margin_scale


class Samples:
    """An evaluator of ``count`` samples: correct are those that are easy enough for a true accuracy.

    How easy a sample is differs a little from subnet to subnet.
    """

    def __init__(self, count, *, seed):
        self.sample_count = count
        self._seed = seed

    def scores(self, subnets, samples, **_):
        return (self.margins(subnets, samples) > 0).astype(np.float32)

    def margins(self, subnets, samples):
        return np.stack([self._draw(str(subnet), truth(subnet))[samples] for subnet in subnets])

    def distances(self, subnets, samples):
        """Five times the accuracy that is lost, give or take a fifth."""
        rngs = [np.random.default_rng([self._seed + 1, *str(subnet).encode()]) for subnet in subnets]
        own = np.array([rng.normal(1, 0.2) for rng in rngs])
        return 5 * own.clip(0.1) * [0.96 - truth(subnet) for subnet in subnets]

    def full_model_margins(self):
        return self._draw("full", 0.96)

    def margin_scale(self):
        return margin_scale(self.full_model_margins(), self.sample_count)

    def _draw(self, name, accuracy):
        shared, own = (
            np.random.default_rng([self._seed, *n]).normal(size=self.sample_count) for n in (b"", name.encode())
        )
        return NormalDist().inv_cdf(accuracy) - math.sqrt(0.8) * shared - math.sqrt(0.2) * own


def truth(subnet):
    return 0.92 - 0.04 * sum(edge.block.startswith("m") for edge in subnet.edges)


@pytest.fixture
def found(elastic_supernet, uniform_costs, make_problem):
    """What a search on so many samples would have found: 40 random subnets."""

    def find(count, *, seed=1):
        supernet = elastic_supernet(12)
        model = uniform_costs(supernet)
        evaluator = Samples(count, seed=seed)
        problem = replace(make_problem(supernet, model, Budget(latency_ms=100)), evaluator=evaluator)
        subnets = list(dict.fromkeys(sample_uniformly(supernet, count=40, random=SplitMix64(seed))))
        accuracies = evaluator.scores(subnets, slice(None)).mean(axis=1)
        pool = tuple(Candidate(Plan(s), model.cost(s), float(a)) for s, a in zip(subnets, accuracies, strict=True))
        return SearchResult(max(pool, key=lambda one: one.accuracy), pool, len(pool), 1, 0.0, "done"), problem

    return find


def test_on_few_samples_the_choice_by_expectation_is_better_than_by_accuracy(found):
    gains = []
    for seed in range(25):
        result, problem = found(50, seed=seed)
        chosen = with_expected_accuracies(result, problem)
        gains.append(truth(chosen.best.subnet) - truth(result.best.subnet))
    assert np.mean(gains) > 0.005


def test_expectations_are_nearer_to_the_truth_than_accuracies(found):
    errors = {"accuracy": [], "expected": []}
    for seed in range(20):
        result, problem = found(200, seed=seed)
        for one in with_expected_accuracies(result, problem).pool:
            for name, values in errors.items():
                values.append(abs(getattr(one, name) - truth(one.subnet)))
    assert np.mean(errors["expected"]) < np.mean(errors["accuracy"])


def test_on_many_samples_expectations_are_what_was_measured(found):
    result, problem = found(20_000)
    for one in with_expected_accuracies(result, problem).pool:
        assert one.expected == pytest.approx(one.accuracy, abs=0.01)


def test_nothing_else_of_the_result_changes(found):
    result, problem = found(50)
    after = with_expected_accuracies(result, problem)
    assert [(one.subnet, one.cost, one.accuracy) for one in after.pool] == [
        (one.subnet, one.cost, one.accuracy) for one in result.pool
    ]
    assert (after.subnets_evaluated, after.stopped) == (result.subnets_evaluated, result.stopped)


def test_one_candidate_or_none_is_enough(found):
    result, problem = found(50)
    alone = with_expected_accuracies(replace(result, pool=result.pool[:1], best=result.pool[0]), problem)
    assert alone.best.subnet == result.pool[0].subnet
    empty = replace(result, pool=(), best=None)
    assert with_expected_accuracies(empty, problem) == empty


def test_an_answer_that_is_barely_right_counts_less_than_one_that_is_surely_right(found):
    result, problem = found(400)
    barely, surely = (one.subnet for one in result.pool[:2])
    margins = {barely: np.full(400, 0.01), surely: np.full(400, 2.0)}
    margins[barely][:40], margins[surely][:41] = -0.01, -0.01
    problem.evaluator.margins = lambda asked, samples: np.stack([margins[one][samples] for one in asked])
    barely_expected, surely_expected = expected_accuracies(problem.evaluator, [barely, surely], slice(None))
    assert barely_expected < surely_expected


def test_answers_as_near_as_the_full_models_own_are_no_division_by_nothing(found):
    result, problem = found(50)
    problem.evaluator.distances = lambda subnets, samples: np.zeros(len(subnets))
    assert all(0 < one.expected < 1 for one in with_expected_accuracies(result, problem).pool)


def test_of_candidates_that_measured_alike_the_one_nearer_to_the_full_model_is_preferred(found):
    result, problem = found(100)
    near, far = subnets = [one.subnet for one in result.pool[:2]]
    margins = np.random.default_rng(1).normal(1, 1, 100)
    problem.evaluator.margins = lambda asked, samples: np.stack([margins[:: 1 if s == near else -1] for s in asked])
    problem.evaluator.distances = lambda asked, samples: np.array([0.1 if one == near else 2.0 for one in asked])
    expected_near, expected_far = expected_accuracies(problem.evaluator, [near, far], slice(None))
    assert expected_near > expected_far
    assert len(set(subnets)) == 2


def test_margins_that_do_not_vary_are_no_division_by_nothing(found):
    result, problem = found(50)
    problem.evaluator.full_model_margins = lambda: np.zeros(50)
    for one in with_expected_accuracies(result, problem).pool:
        assert one.expected == pytest.approx(one.accuracy, abs=0.15)


def test_margins_beyond_all_bounds_are_right_or_wrong(found):
    result, problem = found(50)
    subnets = [one.subnet for one in result.pool]
    drawn = problem.evaluator.margins(subnets, slice(None))
    lowest = float(np.finfo(np.float32).min)
    problem.evaluator.margins = lambda asked, samples: np.where(drawn > 0, -lowest, lowest)[:, samples]
    assert smoothed(problem.evaluator, subnets, slice(None)) == pytest.approx((drawn > 0).astype(float))
    assert np.isfinite(expected_accuracies(problem.evaluator, subnets, slice(None))).all()


def test_expectations_on_some_samples_use_the_margins_of_no_others(found):
    result, problem = found(400)
    subnets, evaluator = [one.subnet for one in result.pool], problem.evaluator
    some, drawn = expected_accuracies(evaluator, subnets, slice(0, 50)), evaluator.margins
    evaluator.margins = lambda asked, samples: drawn(asked, slice(0, 50))[:, samples]
    assert np.array_equal(some, expected_accuracies(evaluator, subnets, slice(0, 50)))
    assert not np.array_equal(some, evaluator.scores(subnets, slice(0, 50)).mean(axis=1))
