from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from device_sdk.search import AdaptiveNetSearch, BayesianPathSearch
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.plan import Plan
from device_sdk.supernet.supernet import Supernet


def additive(subnet):
    """An accuracy that falls with every added block, with some more than with others."""
    cost = sum((0.2 + (int(edge.block.split("_")[1]) % 5) / 10) for edge in subnet.edges if edge.block[0] == "m")
    return round(1000 / (1 + math.exp(cost - 2.5))) / 1000


def test_small_spaces_are_looked_through(elastic_supernet, uniform_costs, all_subnets, scattered, make_problem):
    supernet = elastic_supernet(6)
    model, budget = uniform_costs(supernet), Budget(latency_ms=5.2)
    result = BayesianPathSearch(patience=1000).search(make_problem(supernet, model, budget))
    fitting = {subnet for subnet in all_subnets(supernet) if budget.fits(model.cost(subnet))}
    assert fitting <= {one.subnet for one in result.pool}


def test_it_needs_a_fraction_of_the_samples_that_adaptivenet_needs(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(24)
    model, budget = uniform_costs(supernet), Budget(latency_ms=19)
    used = {}
    for search in (AdaptiveNetSearch(), BayesianPathSearch(generations=12)):
        problem = make_problem(supernet, model, budget, accuracy=additive)
        result = search.search(problem)
        used[type(search)] = (result.best.accuracy, problem.evaluator.samples_run)
    assert used[BayesianPathSearch][0] >= used[AdaptiveNetSearch][0]
    assert used[BayesianPathSearch][1] < 0.5 * used[AdaptiveNetSearch][1]


def test_where_accuracy_is_additive_the_best_is_found_at_once(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(24)
    model, budget = uniform_costs(supernet), Budget(latency_ms=19)
    short, long = (
        BayesianPathSearch(generations=generations).search(make_problem(supernet, model, budget, accuracy=additive))
        for generations in (8, 60)
    )
    assert short.best.subnet == long.best.subnet


def test_in_the_first_generations_only_leaders_are_evaluated_on_all_samples(
    elastic_supernet, uniform_costs, make_problem
):
    supernet = elastic_supernet(24)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=19), accuracy=additive)
    evaluator, generations = problem.evaluator, 3
    BayesianPathSearch(generations=generations, shares=(0.1, 1.0)).search(problem)
    started, finished = generations * 8, 1 + generations + 6  # the first, the leaders, and for the pool at the end
    assert evaluator.samples_run <= (0.1 * started + finished) * evaluator.sample_count


def test_the_first_look_is_what_distillation_errors_favour(elastic_supernet, uniform_costs, make_problem):
    plain = elastic_supernet(12)
    bad = {"m0_2", "m0_3", "m1_3", "m1_4", "m2_4", "m2_5"}
    blocks = [
        msgspec.structs.replace(block, distillation_error=0.5 if block.id in bad else 0.05)
        if block.kind == "merged"
        else block
        for block in plain.blocks
    ]
    supernet = Supernet(plain.cut_points, blocks)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=10), time_limit_s=0.0)
    result = BayesianPathSearch().search(problem)
    [only] = result.pool
    assert not bad & set(only.subnet.block_ids)
    assert only.cost.latency_ms <= 10


def test_when_the_ladder_took_all_the_time_one_more_path_is_looked_at(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(12)
    problem = make_problem(
        supernet, uniform_costs(supernet), Budget(latency_ms=10), time_limit_s=0.0, accuracy=additive
    )
    original = supernet.original
    rung = Candidate(Plan(original), problem.cost_model.cost(original), 0.1)
    result = BayesianPathSearch().search(replace(problem, known=(rung,)))
    assert [rung] == [one for one in result.pool if one.subnet == original]
    assert (len(result.pool), result.stopped) == (2, "time limit")
    assert result.best.cost.latency_ms <= 10


def test_most_subnets_are_given_up_early(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(24)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=19), accuracy=additive)
    result = BayesianPathSearch(generations=30).search(problem)
    evaluator = problem.evaluator
    assert len(result.pool) < result.subnets_evaluated
    assert evaluator.samples_run < 0.9 * result.subnets_evaluated * evaluator.sample_count


def test_the_pool_reaches_above_and_below_the_budget(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(20)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=15), accuracy=additive)
    latencies = [one.cost.latency_ms for one in BayesianPathSearch(generations=3).search(problem).pool]
    assert max(latencies) == pytest.approx(18, rel=0.1)
    assert min(latencies) == pytest.approx(11, rel=0.1)  # the fastest


def test_patience_ends_a_search_that_no_longer_improves(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(20)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=15), accuracy=lambda _: 0.5)
    assert BayesianPathSearch(generations=100, patience=3).search(problem).generations < 20
