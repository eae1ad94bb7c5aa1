from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import UsageError
from device_sdk.live.plan_pool import RUNG, PlanPool, front, pool_of, rungs_ms
from device_sdk.policies.found import Found, Measured
from device_sdk.policies.planning.choice import Choice
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget, Cost, PlanCost
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Edge, Plan, Subnet


def candidate(name: str, latency_ms: float, accuracy: float, peak_bytes: int = 1) -> Candidate:
    return Candidate(Plan(Subnet((Edge(name),))), Cost(latency_ms=latency_ms, peak_bytes=peak_bytes), accuracy)


NO_COST = PlanCost(accuracy=None, latency_ms=None, p95_latency_ms=None, bytes_sent=0.0, peak_bytes=0)


def adaptation(
    pool: list[Candidate], chosen: Candidate, *, measured_ms: float, goal: Goal, median_ms: float | None = None
) -> Found:
    measured = Measured(
        latency_ms=measured_ms,
        interval_ms=(measured_ms, measured_ms),
        median_ms=measured_ms if median_ms is None else median_ms,
        within_budget_probability=1.0,
        full_ms=1.0,
    )
    choice = Choice(Plan(chosen.subnet), NO_COST, {}, len(pool))
    return Found(choice=choice, goal=goal, measured=measured, pool=tuple(pool))


def names(pool: PlanPool) -> list[str]:
    return [str(one.subnet) for one in pool.candidates]


A, B, C, D = (candidate(n, t, a) for n, t, a in [("a", 2, 0.5), ("b", 4, 0.7), ("c", 5, 0.6), ("d", 8, 0.9)])


def test_what_is_slower_and_less_accurate_is_left_out_and_what_is_over_the_budget_is_kept():
    pool = pool_of(adaptation([A, B, C, D], B, measured_ms=4.0, goal=Goal(latency_ms=5.0)))
    assert names(pool) == ["a", "b", "d"]


def test_estimates_agree_with_what_the_chosen_one_measured():
    pool = pool_of(adaptation([A, B, D], B, measured_ms=6.0, goal=Goal(latency_ms=6.0)))
    assert [one.cost.latency_ms for one in pool.candidates] == [3.0, 6.0, 12.0]
    more = pool.with_more([candidate("e", 3.0, 0.65)])
    assert [one.cost.latency_ms for one in more.candidates] == [3.0, 4.5, 6.0, 12.0]


def test_what_was_better_and_not_chosen_counts_as_over_the_budget():
    refused = candidate("refused", 4.9, 0.8)
    pool = pool_of(adaptation([A, B, refused, D], B, measured_ms=4.0, goal=Goal(latency_ms=5.0)))
    assert pool.find(refused.subnet).cost.latency_ms > 5.0
    assert pool.find(A.subnet).cost.latency_ms == 2.0


def test_the_chosen_one_stays_even_where_another_is_as_quick_and_better():
    quicker = candidate("lucky", 1.0, 0.95, peak_bytes=1)
    pool = pool_of(adaptation([A, B, D], B, measured_ms=4.0, goal=Goal(latency_ms=5.0)), [quicker])
    assert pool.find(B.subnet) is not None
    assert pool.with_more([candidate("best", 0.1, 1.0)]).find(B.subnet) is not None


def test_a_pool_without_a_latency_budget_makes_no_sense():
    with pytest.raises(UsageError, match="latency budget"):
        pool_of(adaptation([A], A, measured_ms=2.0, goal=Goal(memory_mb=5)))


def test_a_pool_survives_being_written_and_read():
    pool = pool_of(adaptation([A, B, D], B, measured_ms=4.4, goal=Goal(latency_ms=5.0, memory_mb=3.0)))
    assert msgspec.json.decode(msgspec.json.encode(pool), type=PlanPool) == pool


def test_what_a_bundle_does_not_have_and_what_makes_no_sense_is_left_out(elastic_supernet):
    supernet = elastic_supernet(3)
    own = Candidate(Plan(supernet.original), Cost(latency_ms=3.0, peak_bytes=1), 0.9)
    nonsense = [
        replace(own, cost=Cost(latency_ms=latency_ms, peak_bytes=1)) for latency_ms in (0.0, -1.0, float("inf"))
    ]
    pool = PlanPool(Budget(latency_ms=5.0), own.subnet, (*nonsense, A, own))
    assert pool.known_to(supernet).candidates == (own,)
    assert PlanPool(Budget(latency_ms=5.0), A.subnet, (A, own)).known_to(supernet) is None
    assert PlanPool(Budget(memory_mb=5.0), own.subnet, (own,)).known_to(supernet) is None


candidates = st.builds(
    candidate,
    st.sampled_from("abcdefghij"),
    st.integers(1, 9).map(float),
    st.integers(0, 5).map(lambda n: n / 5),
    st.integers(1, 3),
)


@given(st.lists(candidates, max_size=12))
def test_whatever_the_limits_the_front_has_the_best_that_fits(pool):
    kept = front(pool)
    for latency_ms in range(1, 10):
        for peak in (1, 2, 3):
            budget = Budget(latency_ms=latency_ms, memory_mb=peak / 1e6)
            best = max((one.accuracy for one in pool if budget.fits(one.cost)), default=None)
            assert max((one.accuracy for one in kept if budget.fits(one.cost)), default=None) == best


@given(
    fastest=st.floats(0.1, 5.0),
    spread=st.floats(1.0, 20.0),
    share=st.floats(0.0, 1.0),
)
def test_rungs_reach_from_the_fastest_to_the_slowest_in_even_steps(fastest, spread, share):
    slowest = fastest * spread
    budget_ms = fastest + share * (slowest - fastest)
    rungs = sorted([*rungs_ms(fastest, slowest, budget_ms=budget_ms), budget_ms])
    assert rungs[0] >= min(fastest, budget_ms) * 0.999
    assert rungs[-1] <= slowest * 1.002
    if share > 0.01 and spread > 1.1:
        assert rungs[0] <= fastest * 1.002
    assert all(b / a < RUNG * RUNG**0.3 for a, b in pairwise(rungs))


def test_a_budget_at_another_percentile_is_kept_by_medians():
    tail = Goal(latency_ms=6.0, percentile=95.0)
    pool = pool_of(adaptation([A, B, D], B, measured_ms=6.0, median_ms=4.8, goal=tail))
    assert pool.budget.latency_ms == pytest.approx(4.8)
    assert pool.budget.percentile == 50.0
    assert pool.find(B.subnet).cost.latency_ms == 4.8
