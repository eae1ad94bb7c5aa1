from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.search.expectation import FRONT_LIMIT, ParetoPaths, best_path
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.supernet import Supernet


def worth(subnet, value):
    return sum(value[edge] for edge in subnet.edges)


@given(data=st.data())
def test_the_best_path_in_time_is_that_of_enumeration(priced_supernets, all_subnets, data):
    supernet, model = data.draw(priced_supernets)
    value = {edge: float(data.draw(st.integers(-9, 9))) for edge in supernet.edges}
    everything = all_subnets(supernet)
    latency_ms = data.draw(st.sampled_from([None, *(model.latency_ms(subnet) for subnet in everything)]))
    if latency_ms is None:
        fitting, budget = everything, Budget(memory_mb=1e9)
    else:
        budget = Budget(latency_ms=latency_ms)
        fitting = [subnet for subnet in everything if budget.fits(model.cost(subnet))]
    found = best_path(supernet, model, budget, value)
    assert found in fitting
    assert worth(found, value) == max(worth(subnet, value) for subnet in fitting)


@given(data=st.data())
def test_a_path_within_a_memory_limit_really_is(priced_supernets, all_subnets, data):
    supernet, model = data.draw(priced_supernets)
    value = {edge: float(data.draw(st.integers(-9, 9))) for edge in supernet.edges}
    target = model.cost(data.draw(st.sampled_from(all_subnets(supernet))))
    budget = Budget(latency_ms=target.latency_ms, memory_mb=max(target.peak_bytes, 1) / 10**6)
    found = best_path(supernet, model, budget, value)
    assert found is None or budget.fits(model.cost(found))


def test_memory_is_traded_for_value(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(27)  # 1 MB a block, half of it more while one works
    value = {edge: 1.0 if edge.block.startswith("o") else 0.0 for edge in supernet.edges}
    found = best_path(supernet, uniform_costs(supernet), Budget(memory_mb=20.5), value)
    assert len(found.edges) <= 20
    assert worth(found, value) >= 14  # 20 blocks for 27 cut points: at best 16 originals and 4 that replace 2 or 3


def test_what_costs_too_much_has_no_path(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(9)
    model = uniform_costs(supernet)
    value = dict.fromkeys(supernet.edges, 0.0)
    assert best_path(supernet, model, Budget(latency_ms=5.2), value) is None
    assert best_path(supernet, model, Budget(latency_ms=5.25), value) is not None


def test_a_cost_model_that_knows_more_than_its_edges_is_obeyed(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(12)
    model = uniform_costs(supernet, scale=0.5, offset_ms=1.0)
    value = {edge: model.edge_latency_ms(edge) for edge in supernet.edges}
    found = best_path(supernet, model, Budget(latency_ms=6.0), value)
    assert model.latency_ms(found) <= 6.0
    assert model.latency_ms(found) == pytest.approx(6.0, abs=0.13)


def test_fronts_that_grow_too_long_are_thinned_and_still_give_good_paths(build_supernet):
    """Three ways at each of 40 steps, with costs and values that never tie: more trade-offs than are kept."""
    plain = build_supernet(40, int8=[f"o{i}" for i in range(40)])
    cost = {edge: 1 + math.sqrt(place + 2) % 1 for place, edge in enumerate(plain.edges)}
    value = {edge: math.sqrt(7 * place + 3) % 1 for place, edge in enumerate(plain.edges)}
    paths = ParetoPaths(plain, value=value, cost=cost)
    limit = sum(cost.values()) / 2
    found = paths.best(limit)
    bound = _relaxed(plain, value, cost, limit)
    assert sum(cost[edge] for edge in found.edges) <= limit
    assert worth(found, value) >= 0.99 * bound
    assert FRONT_LIMIT < 2**40


def _relaxed(supernet: Supernet, value, cost, limit) -> float:
    """An upper bound on the value within a limit: the least Lagrangian bound over some prices."""

    def bound(price):
        ways = [[edge for edge, _ in leaving] for leaving in supernet.edges_from[:-1]]
        return price * limit + sum(max(value[edge] - price * cost[edge] for edge in way) for way in ways)

    return min(bound(step / 50) for step in range(200))
