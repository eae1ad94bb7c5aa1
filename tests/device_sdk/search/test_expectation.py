from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from device_sdk.random_source import SplitMix64
from device_sdk.search import Candidate, SearchResult, with_expected_accuracies
from device_sdk.search.expectation import expected_accuracies
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Plan


class Samples:
    """An evaluator of ``count`` samples: correct are those that are easy enough for a true accuracy.

    How easy a sample is differs a little from subnet to subnet.
    """

    def __init__(self, count, *, seed):
        self.sample_count = count
        self._seed = seed

    def correct(self, subnets, samples, **_):
        return np.stack([self._row(subnet)[samples] for subnet in subnets])

    def full_model_correct(self):
        return self._draw("full", 0.96)

    def distances(self, subnets, samples):
        """Five times the accuracy that is lost, give or take a fifth."""
        rngs = [np.random.default_rng([self._seed + 1, *str(subnet).encode()]) for subnet in subnets]
        own = np.array([rng.normal(1, 0.2) for rng in rngs])
        return 5 * own.clip(0.1) * [0.96 - truth(subnet) for subnet in subnets]

    def _row(self, subnet):
        return self._draw(str(subnet), truth(subnet))

    def _draw(self, name, accuracy):
        shared, own = (
            np.random.default_rng([self._seed, *n]).normal(size=self.sample_count) for n in (b"", name.encode())
        )
        return math.sqrt(0.8) * shared + math.sqrt(0.2) * own < NormalDist().inv_cdf(accuracy)


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
        accuracies = evaluator.correct(subnets, slice(None)).mean(axis=1)
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


def test_near_copies_that_are_lucky_together_count_as_one(found):
    result, problem = found(400)
    pool = result.pool[:30]
    subnets = [one.subnet for one in pool]
    random = np.random.default_rng(1)
    full = random.random(400) < 0.93
    lucky = full ^ (random.random(400) < 0.06)
    lucky[np.flatnonzero(~full)[:16]] = True
    near, poor = full ^ (random.random(400) < 0.01), full & (random.random(400) > 0.06)
    rows = np.array([near, poor, *[lucky ^ (random.random(400) < 0.002) for _ in pool[2:]]])
    distances = np.array([0.5, 5.0, *[3.0 for _ in pool[2:]]])
    problem.evaluator.full_model_correct = lambda: full
    problem.evaluator.correct = lambda asked, samples: rows[[subnets.index(one) for one in asked]]
    problem.evaluator.distances = lambda asked, samples: distances[[subnets.index(one) for one in asked]]
    pool = tuple(replace(one, accuracy=float(row.mean())) for one, row in zip(pool, rows, strict=True))
    assert max(pool, key=lambda one: one.accuracy).subnet not in subnets[:2]
    chosen = with_expected_accuracies(replace(result, pool=pool), problem)
    assert chosen.best.subnet == subnets[0]


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


def test_what_is_nearest_to_the_full_model_is_chosen_over_the_luckiest(found):
    result, problem = found(50, seed=3)
    chosen = with_expected_accuracies(result, problem).best.subnet
    assert chosen != result.best.subnet
    near, lucky = problem.evaluator.distances([chosen, result.best.subnet], slice(None))
    assert near < lucky


def test_answers_as_near_as_the_full_models_own_are_no_division_by_nothing(found):
    result, problem = found(50)
    problem.evaluator.distances = lambda subnets, samples: np.zeros(len(subnets))
    assert all(0 < one.expected < 1 for one in with_expected_accuracies(result, problem).pool)


def test_one_candidate_or_none_is_enough(found):
    result, problem = found(50)
    alone = with_expected_accuracies(replace(result, pool=result.pool[:1], best=result.pool[0]), problem)
    assert alone.best.subnet == result.pool[0].subnet
    empty = replace(result, pool=(), best=None)
    assert with_expected_accuracies(empty, problem) == empty


def test_where_everything_far_was_lucky_the_nearer_is_preferred_all_the_same(found):
    result, problem = found(400)
    subnets = [one.subnet for one in result.pool]
    random = np.random.default_rng(2)
    full = random.random(400) < 0.9
    distances = np.linspace(0.2, 3, len(subnets))
    rows = np.array([full ^ (random.random(400) < 0.01 * distance) for distance in distances])
    for row, distance in zip(rows, distances, strict=True):
        row[np.flatnonzero(~full)[: round(8 * distance)]] = True
    problem.evaluator.full_model_correct = lambda: full
    problem.evaluator.correct = lambda asked, samples: rows[[subnets.index(one) for one in asked]]
    problem.evaluator.distances = lambda asked, samples: distances[[subnets.index(one) for one in asked]]
    pool = tuple(replace(one, accuracy=float(row.mean())) for one, row in zip(result.pool, rows, strict=True))
    assert subnets.index(max(pool, key=lambda one: one.accuracy).subnet) > len(subnets) / 2
    chosen = with_expected_accuracies(replace(result, pool=pool), problem)
    assert chosen.best.subnet == subnets[0]


def test_expectations_on_some_samples_use_no_others(found):
    result, problem = found(400)
    subnets, evaluator = [one.subnet for one in result.pool], problem.evaluator
    some = expected_accuracies(evaluator, subnets, slice(0, 50))
    asked, whole = evaluator.correct, evaluator.full_model_correct()
    evaluator.correct = lambda subnets, samples: asked(subnets, slice(0, 50))[:, samples]
    evaluator.full_model_correct = lambda: whole[:50]
    assert np.array_equal(some, expected_accuracies(evaluator, subnets, slice(0, 50)))
    assert not np.array_equal(some, asked(subnets, slice(0, 50)).mean(axis=1))
