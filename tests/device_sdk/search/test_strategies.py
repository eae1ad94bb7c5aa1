"""What every search strategy keeps, the benchmark's rivals too: the port's conformance suite."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search.strategies import ALL
from device_sdk.errors import InfeasibleBudgetError, UsageError
from device_sdk.search import best_within
from device_sdk.supernet.cost import Budget

QUICK = {
    "adaptivenet": {"generations": 3, "population": 8},
    "annealing": {"steps": 24},
    "evolution": {"generations": 4, "population": 8, "tournament": 3, "children": 4},
    "pathweave": {"generations": 4, "group": 6, "mutations": 12},
    "random": {"generations": 3, "group": 8},
}

pytestmark = pytest.mark.parametrize("name", sorted(ALL))


def quick(name):
    return ALL[name](**QUICK[name])


@settings(max_examples=12)
@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_every_feasible_budget_has_an_answer_that_fits(
    priced_supernets, all_subnets, scattered, make_problem, name, data, seed
):
    supernet, model = data.draw(priced_supernets)
    target = model.cost(data.draw(st.sampled_from(all_subnets(supernet))))
    limits = data.draw(st.sampled_from(["latency", "memory", "both"]))
    budget = Budget(
        latency_ms=None if limits == "memory" else target.latency_ms,
        memory_mb=None if limits == "latency" else max(target.peak_bytes, 1) / 10**6,
    )
    problem = make_problem(supernet, model, budget, seed=seed)
    result = quick(name).search(problem)
    assert result.best is not None
    assert budget.fits(result.best.cost)
    assert result.best == best_within(result.pool, budget)
    assert result.stopped == "done"
    assert all(one.cost == model.cost(one.subnet) and one.accuracy == scattered(one.subnet) for one in result.pool)
    assert len({one.subnet for one in result.pool}) == len(result.pool) <= result.subnets_evaluated
    assert result.subnets_evaluated == sum(map(len, problem.evaluator.groups))


def test_equal_seeds_search_equally(elastic_supernet, uniform_costs, make_problem, name):
    supernet = elastic_supernet(16)

    def run(seed):
        problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=12), seed=seed)
        return quick(name).search(problem)

    assert run(1) == run(1)
    assert run(1).pool != run(2).pool


def test_renditions_of_a_block_are_alternatives(build_supernet, uniform_costs, make_problem, name):
    supernet = build_supernet(6, int8=["o1", "o3"])  # 6 ms; an int8 rendition saves a quarter
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=5.6))
    result = quick(name).search(problem)
    assert {str(one.subnet) for one in result.pool if problem.budget.fits(one.cost)} == {
        "o0 o1@int8 o2 o3@int8 o4 o5",
    }


def test_an_infeasible_budget_is_refused_before_anything_is_evaluated(
    elastic_supernet, uniform_costs, make_problem, name
):
    supernet = elastic_supernet(9)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=5))
    with pytest.raises(InfeasibleBudgetError, match="no subnet runs in 5 ms"):
        quick(name).search(problem)
    assert problem.evaluator.groups == []


@pytest.mark.parametrize("time_limit_s", [0.0, 3.5])
def test_the_time_limit_ends_the_search_with_the_best_so_far(
    elastic_supernet, uniform_costs, make_problem, name, time_limit_s
):
    supernet, seconds = elastic_supernet(16), itertools.count()
    budget = Budget(latency_ms=12)
    problem = make_problem(
        supernet,
        uniform_costs(supernet),
        budget,
        clock=lambda: float(next(seconds)),
        time_limit_s=time_limit_s,
    )
    result = quick(name).search(problem)
    assert result.stopped == "time limit"
    assert result.best is not None
    assert budget.fits(result.best.cost)


def test_cancelled_at_once_nothing_is_evaluated(elastic_supernet, uniform_costs, make_problem, name):
    supernet = elastic_supernet(16)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=12), cancelled=lambda: True)
    result = quick(name).search(problem)
    assert (result.best, result.pool, result.stopped) == (None, (), "cancelled")
    assert problem.evaluator.groups == []


def test_cancelling_keeps_what_was_found(elastic_supernet, uniform_costs, make_problem, name):
    supernet, answers = elastic_supernet(16), itertools.chain([False] * 5, itertools.repeat(True))
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=12), cancelled=lambda: next(answers))
    result = quick(name).search(problem)
    assert result.stopped == "cancelled"
    assert result.best is not None


def test_progress_is_reported(elastic_supernet, uniform_costs, make_problem, name):
    supernet = elastic_supernet(16)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=12))
    result = quick(name).search(problem)
    [(task, total)] = problem.progress.started
    assert task == "search"
    assert 0 < problem.progress.done == result.generations <= total
    assert problem.progress.notes[-1].startswith("best ")


def test_a_supernet_of_one_subnet_is_searched_at_once(build_supernet, uniform_costs, make_problem, name):
    supernet = build_supernet(4)
    result = quick(name).search(make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=5)))
    assert [one.subnet for one in result.pool] == [supernet.original]


def test_settings_that_make_no_sense_are_refused(name):
    wrong = {
        "adaptivenet": [{"generations": 0}, {"window_ratio": 0.0}],
        "annealing": [{"steps": 0}, {"cold": 0.0}, {"hot": 0.001}],
        "evolution": [{"generations": 0}, {"population": 0}, {"tournament": 0}, {"children": 0}],
        "pathweave": [{"group": 0}, {"optimism": -1.0}, {"shares": ()}, {"shares": (1.5,)}],
        "random": [{"group": 0}],
    }
    for one in wrong[name]:
        with pytest.raises(UsageError):
            ALL[name](**one)
