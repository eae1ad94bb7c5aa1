from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from device_sdk.search import STRATEGIES, AdaptiveNetSearch, Candidate, best_within, make_strategy
from device_sdk.supernet.cost import Budget, Cost
from device_sdk.supernet.plan import Edge, Plan, Subnet


def candidate(name, latency_ms, accuracy, peak_bytes=1, expected=None):
    return Candidate(Plan(Subnet((Edge(name),))), Cost(latency_ms, peak_bytes), accuracy, expected)


def test_best_is_the_most_accurate_that_fits_and_the_faster_of_equals():
    slow, fast = candidate("slow", 3, 0.8), candidate("fast", 2, 0.8)
    worse, over = candidate("worse", 1, 0.7), candidate("over", 9, 0.9)
    pool = [slow, worse, over, fast]
    assert best_within(pool, Budget(latency_ms=5)) == fast
    assert best_within(pool, Budget(latency_ms=9)) == over
    assert best_within(pool, Budget(latency_ms=1)) == worse
    assert best_within(pool, Budget(latency_ms=0.5)) is None


def test_what_is_expected_counts_more_than_what_was_measured():
    lucky, steady = candidate("lucky", 1, 0.9, expected=0.82), candidate("steady", 2, 0.88, expected=0.86)
    assert best_within([lucky, steady], Budget(latency_ms=5)) == steady
    assert best_within([lucky, steady], Budget(latency_ms=1)) == lucky


def test_best_does_not_depend_on_the_order_of_the_pool():
    twins = [candidate("a", 1, 0.5), candidate("b", 1, 0.5)]
    assert best_within(twins, Budget(latency_ms=1)) == best_within(twins[::-1], Budget(latency_ms=1))


def test_strategies_are_made_by_name_with_their_settings():
    assert make_strategy("adaptivenet", generations=3) == AdaptiveNetSearch(generations=3)
    assert all(make_strategy(name) for name in STRATEGIES)


def test_an_unknown_strategy_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="no search strategy oracle") as caught:
        make_strategy("oracle")
    assert caught.value.hint == "known: adaptivenet, pathweave"
