from __future__ import annotations

import pytest

from device_sdk.errors import BudgetError, InfeasibleBudgetError
from device_sdk.supernet.cost import Budget, PlanCost
from device_sdk.supernet.goal import Requirement, best_plan
from device_sdk.supernet.plan import Edge, Plan, Subnet


def judged(name, accuracy, latency_ms, **more):
    cost = PlanCost(
        accuracy=accuracy, latency_ms=latency_ms, p95_latency_ms=latency_ms, bytes_sent=0.0, peak_bytes=100, **more
    )
    return Plan(Subnet((Edge(name),))), cost


FAST, GOOD, SLOW = judged("fast", 0.7, 5.0), judged("good", 0.9, 10.0), judged("slow", 0.95, 20.0)
ALL = [FAST, GOOD, SLOW]


def test_the_most_accurate_within_a_latency():
    assert best_plan(ALL, Requirement(latency_ms=10.0)) == GOOD


def test_the_quickest_that_is_accurate_enough():
    assert best_plan(ALL, Requirement(optimise="latency_ms", accuracy=0.8)) == GOOD


def test_a_budget_is_its_short_form():
    wanted = Requirement(coverage=1.0, latency_ms=10.0, peak_bytes=1_000_000)
    assert Requirement.of(Budget(latency_ms=10.0, memory_mb=1.0)) == wanted


def test_what_is_unknown_keeps_no_limit_on_it():
    unknown = judged("asks", None, None)
    assert best_plan([unknown, FAST], Requirement(latency_ms=10.0)) == FAST
    assert best_plan([unknown, FAST], Requirement(optimise="bytes_sent", peak_bytes=100)) == FAST


def test_coverage_is_a_limit_from_below():
    shy = judged("shy", 0.99, 5.0, share_abstained=0.4)
    assert best_plan([shy, FAST], Requirement(latency_ms=10.0, coverage=0.9)) == FAST
    assert best_plan([shy, FAST], Requirement(latency_ms=10.0, coverage=0.5)) == shy


def test_where_none_keeps_the_limits_the_nearest_is_named():
    with pytest.raises(InfeasibleBudgetError, match="latency_ms 5") as caught:
        best_plan(ALL, Requirement(latency_ms=1.0))
    assert caught.value.nearest == ("fast",)


def test_an_optimised_quantity_may_be_limited_too():
    with pytest.raises(InfeasibleBudgetError, match="latency_ms 5"):
        best_plan(ALL, Requirement(optimise="latency_ms", latency_ms=1.0))


@pytest.mark.parametrize(
    "limits", [{}, {"latency_ms": 0.0}, {"accuracy": 1.5}, {"coverage": 0.0}, {"peak_bytes": -1}, {"bytes_sent": -1.0}]
)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(BudgetError):
        Requirement(**limits)


def test_there_has_to_be_something_to_choose_from():
    with pytest.raises(BudgetError, match="no plans"):
        best_plan([], Requirement(latency_ms=1.0))
