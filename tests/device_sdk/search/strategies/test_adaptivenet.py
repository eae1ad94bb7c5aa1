from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import InfeasibleBudgetError, UsageError
from device_sdk.search import AdaptiveNetSearch
from device_sdk.search.nearby import require_feasible
from device_sdk.search.port import best_within
from device_sdk.supernet.cost import Budget


def originals(subnet):
    """An accuracy that grows with the number of original blocks."""
    return sum(edge.block.startswith("o") for edge in subnet.edges) / 100


@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_where_all_fit_into_one_generation_the_optimum_is_found(
    priced_supernets, all_subnets, scattered, make_problem, data, seed
):
    supernet, model = data.draw(priced_supernets)
    everything = all_subnets(supernet)
    target = model.cost(data.draw(st.sampled_from(everything)))
    memory_mb = data.draw(st.sampled_from([None, max(target.peak_bytes, 1) / 10**6]))
    budget = Budget(latency_ms=target.latency_ms, memory_mb=memory_mb)
    search = AdaptiveNetSearch(population=len(everything) + 1)
    result = search.search(make_problem(supernet, model, budget, seed=seed))
    best = max(scattered(subnet) for subnet in everything if budget.fits(model.cost(subnet)))
    assert result.best is not None
    assert result.best.accuracy == best
    assert result.stopped == "done"


@pytest.mark.parametrize("latency_ms", [8.0, 9.5, 11.0])
def test_patience_and_generations_enough_look_at_the_whole_window(
    elastic_supernet, uniform_costs, all_subnets, scattered, make_problem, latency_ms
):
    supernet = elastic_supernet(10)
    model = uniform_costs(supernet)
    budget = Budget(latency_ms=latency_ms)
    search = AdaptiveNetSearch(generations=1000, patience=1000, population=16)
    result = search.search(make_problem(supernet, model, budget))
    inside = [s for s in all_subnets(supernet) if 0.9 * latency_ms <= model.latency_ms(s) <= latency_ms]
    assert result.best is not None
    assert result.best.accuracy >= max(map(scattered, inside))
    assert result.stopped == "done"
    assert result.generations < 1000


def test_evolution_finds_the_optimum_of_a_large_space_that_has_structure(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(27)
    model = uniform_costs(supernet)
    result = AdaptiveNetSearch().search(make_problem(supernet, model, Budget(latency_ms=24), accuracy=originals))
    # 27 originals take 27 ms; a merged block replaces 3 of them and saves 1.25 ms, or 2 and saves 0.75 ms:
    # saving 3 ms takes the place of 8 originals at least
    assert result.best is not None
    assert result.best.accuracy == 0.19
    assert result.subnets_evaluated < 400


@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_every_feasible_budget_has_an_answer_that_fits_and_the_pool_is_near_or_under_it(
    priced_supernets, all_subnets, make_problem, data, seed
):
    supernet, model = data.draw(priced_supernets)
    target = model.cost(data.draw(st.sampled_from(all_subnets(supernet))))
    budget = Budget(latency_ms=target.latency_ms)
    problem = make_problem(supernet, model, budget, seed=seed)
    result = AdaptiveNetSearch(generations=2, population=3).search(problem)
    assert result.best == best_within(result.pool, budget)
    assert result.best is not None
    assert require_feasible(supernet, model, budget) in [one.subnet for one in result.pool]
    assert all(one.cost.latency_ms <= target.latency_ms * 1.1 + 1e-9 for one in result.pool)
    assert all(one.cost == model.cost(one.subnet) for one in result.pool)
    assert result.subnets_evaluated == len(result.pool) == len({one.subnet for one in result.pool})
    assert result.subnets_evaluated == sum(map(len, problem.evaluator.groups))


@pytest.mark.parametrize("budget", [Budget(latency_ms=1000), Budget(memory_mb=1000)])
def test_a_budget_above_the_slowest_subnet_reaches_the_original(elastic_supernet, uniform_costs, make_problem, budget):
    supernet = elastic_supernet(27)
    problem = make_problem(supernet, uniform_costs(supernet), budget, accuracy=originals)
    result = AdaptiveNetSearch(generations=1).search(problem)
    assert result.best is not None
    assert result.best.subnet == supernet.original


def test_over_budget_subnets_stay_in_the_pool_and_are_never_the_best(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(12)
    budget = Budget(latency_ms=9)
    result = AdaptiveNetSearch().search(make_problem(supernet, uniform_costs(supernet), budget, accuracy=originals))
    assert any(not budget.fits(one.cost) for one in result.pool)
    assert result.best is not None
    assert budget.fits(result.best.cost)


def test_memory_limits_hold_for_the_whole_pool(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(27)  # 1 MB a block
    budget = Budget(latency_ms=25, memory_mb=10.5)
    result = AdaptiveNetSearch().search(make_problem(supernet, uniform_costs(supernet), budget))
    assert result.best is not None
    assert len(result.pool) > 1
    assert all(budget.fits_memory(one.cost.peak_bytes) for one in result.pool)


def test_equal_seeds_search_equally(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(20)
    model = uniform_costs(supernet)

    def run(seed):
        return AdaptiveNetSearch().search(make_problem(supernet, model, Budget(latency_ms=15), seed=seed))

    assert run(1) == run(1)
    assert run(1).pool != run(2).pool


def test_an_infeasible_budget_is_refused_before_anything_is_evaluated(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(9)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=5))
    with pytest.raises(InfeasibleBudgetError, match=r"no subnet runs in 5 ms; .* 5\.25 ms \(m0_3 m3_6 m6_9\)"):
        AdaptiveNetSearch().search(problem)
    assert problem.evaluator.groups == []


@pytest.mark.parametrize(("time_limit_s", "generations"), [(0.0, 0), (0.5, 0), (2.5, 1), (4.0, 1), (5.5, 2)])
def test_the_time_limit_ends_the_search_with_the_best_so_far(
    elastic_supernet, uniform_costs, make_problem, time_limit_s, generations
):
    supernet = elastic_supernet(20)
    model = uniform_costs(supernet)
    seconds = itertools.count()
    problem = make_problem(
        supernet, model, Budget(latency_ms=15), clock=lambda: float(next(seconds)), time_limit_s=time_limit_s
    )
    result = AdaptiveNetSearch().search(problem)
    assert result.stopped == "time limit"
    assert result.best is not None
    assert result.generations == generations
    assert result.seconds >= time_limit_s


def test_cancelling_ends_the_search_between_groups(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(20)
    answers = iter([False] * 6 + [True])  # asked before and during each group: the cheapest, two generations
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=15), cancelled=lambda: next(answers))
    result = AdaptiveNetSearch().search(problem)
    assert result.stopped == "cancelled"
    assert result.generations == 2
    assert result.best is not None


def test_cancelled_at_once_nothing_is_evaluated(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(20)
    budget = Budget(latency_ms=15)
    problem = make_problem(supernet, uniform_costs(supernet), budget, cancelled=lambda: True)
    result = AdaptiveNetSearch().search(problem)
    assert (result.best, result.pool, result.stopped) == (None, (), "cancelled")


def test_progress_counts_generations_and_names_the_best(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(20)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=15))
    result = AdaptiveNetSearch(generations=3).search(problem)
    assert problem.progress.started == [("search", 3)]
    assert problem.progress.done == result.generations == 3
    assert problem.progress.notes[-1].startswith(f"best {result.best.accuracy:.2%} at ")


def test_patience_ends_a_search_that_no_longer_improves(elastic_supernet, uniform_costs, make_problem):
    supernet = elastic_supernet(27)
    problem = make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=20), accuracy=lambda _: 0.5)
    result = AdaptiveNetSearch(generations=500, patience=2).search(problem)
    assert result.generations < 60


def test_a_supernet_of_one_subnet_is_searched_at_once(build_supernet, uniform_costs, make_problem):
    supernet = build_supernet(4)
    result = AdaptiveNetSearch().search(make_problem(supernet, uniform_costs(supernet), Budget(latency_ms=5)))
    assert [one.subnet for one in result.pool] == [supernet.original]
    assert result.stopped == "done"


@pytest.mark.parametrize(
    "wrong",
    [{"generations": 0}, {"population": 0}, {"patience": 0}, {"window_ratio": 0.0}, {"window_ratio": 1.5}],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError):
        AdaptiveNetSearch(**wrong)
