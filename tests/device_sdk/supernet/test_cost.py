from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import BudgetError, UsageError
from device_sdk.supernet.cost import Budget, Cost, CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, ExitChoice, Margin, MaxConfidence, Subnet


def test_a_budget_limits_something():
    with pytest.raises(BudgetError, match="limits nothing") as caught:
        Budget()
    assert caught.value.hint


@pytest.mark.parametrize("limit", [0, -1, -0.0, math.nan, -math.inf])
@pytest.mark.parametrize("name", ["latency_ms", "memory_mb"])
def test_a_limit_is_above_zero(name, limit):
    with pytest.raises(BudgetError, match=f"{name} is .* above zero"):
        Budget(**{name: limit})


def test_a_budget_fits_up_to_its_limits():
    budget = Budget(latency_ms=10, memory_mb=2)
    assert budget.fits(Cost(latency_ms=10, peak_bytes=2_000_000))
    assert not budget.fits(Cost(latency_ms=10.001, peak_bytes=2_000_000))
    assert not budget.fits(Cost(latency_ms=10, peak_bytes=2_000_001))


def test_what_is_not_limited_always_fits():
    assert Budget(latency_ms=1).fits(Cost(latency_ms=1, peak_bytes=10**12))
    assert Budget(memory_mb=1).fits(Cost(latency_ms=1e9, peak_bytes=1))


def test_latency_is_scaled_and_offset_and_memory_is_residents_plus_the_largest_working_set():
    costs = {Edge("a"): EdgeCost(2, 3, 100, 70), Edge("b"): EdgeCost(4, 5, 200, 50)}
    model = CostModel(costs, scale=0.5, offset_ms=0.25)
    subnet = Subnet((Edge("a"), Edge("b")))
    assert model.edge_latency_ms(Edge("b")) == 2
    assert model.latency_ms(subnet) == 3.25
    assert model.peak_bytes(subnet) == 370
    assert model.cost(subnet) == Cost(latency_ms=3.25, peak_bytes=370)


def test_neighbours_of_different_renditions_cost_the_change_and_edges_alone_are_a_lower_bound():
    whole, quick = EdgeCost(2, 2, 0, 0), EdgeCost(1, 1, 0, 0)
    a, b, c = Edge("a"), Edge("b", "int8"), Edge("c")
    model = CostModel({a: whole, b: quick, c: whole, Edge("b"): whole}, entry_change_ms={b: 0.25, c: 0.5})
    assert model.latency_along_ms((a, b, c)) == 2 + 1 + 2 + 0.25 + 0.5
    assert model.latency_along_ms((a, Edge("b"), c)) == 6
    assert model.latency_along_ms(iter((b,))) == 1  # nothing before it
    assert sum(map(model.edge_latency_ms, (a, b, c))) <= model.latency_ms(Subnet((a, b, c)))
    assert model.change_ms(c, b) == 0.25
    assert model.change_ms(b, a) == 0


def test_who_leaves_at_an_exit_pays_what_going_on_costs_nowhere():
    costs = {Edge("a"): EdgeCost(2, 3, 100, 70)}
    model = CostModel(costs, exit_costs={("x1", "fp32", ()): EdgeCost(0.5, 0.6, 1, 1)}, exit_overhead_ms=0.25)
    before, choice = (Edge("a"),), ExitChoice("x1", 0.5)
    assert model.reach_ms(before) + model.exit_latency_ms(choice) == 2.5
    assert msgspec.structs.replace(model, exit_overhead_ms=9.0).reach_ms(before) == 0.0


@given(data=st.data())
def test_leaving_out_an_edge_never_costs_more(priced_supernets, data):
    supernet, model = data.draw(priced_supernets)
    whole = supernet.original.edges
    if len(whole) > 1:
        part, whole = Subnet(whole[:-1]), Subnet(whole)
        assert model.latency_ms(part) <= model.latency_ms(whole)
        assert model.peak_bytes(part) <= model.peak_bytes(whole)


@given(data=st.data())
def test_a_slower_device_takes_as_many_times_longer_for_everything(priced_supernets, data):
    supernet, costs = data.draw(priced_supernets)
    edges = supernet.original.edges
    costs = msgspec.structs.replace(
        costs,
        exit_costs={("x1", "fp32", ()): EdgeCost(0.5, 0.6, 1, 1)},
        entry_change_ms=dict.fromkeys(edges, 0.25),
        exit_overhead_ms=0.125,
        call_overhead_ms=0.0625,
        decision_ms={"margin": 0.25},
    )
    slowed, choice = costs.slowed(4.0), ExitChoice("x1", 0.5)
    assert slowed.latency_ms(supernet.original) == pytest.approx(4 * costs.latency_ms(supernet.original))
    assert slowed.exit_latency_ms(choice) == 4 * costs.exit_latency_ms(choice)
    assert slowed.call_overhead_ms == 0.25
    assert (slowed.deciding_ms(Margin(0.5)), slowed.deciding_ms(MaxConfidence(0.5))) == (1.0, 0.0)
    assert slowed.peak_bytes(supernet.original) == costs.peak_bytes(supernet.original)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_a_factor_that_is_not_above_zero_is_refused(factor):
    with pytest.raises(UsageError, match="must be above zero"):
        CostModel({}).slowed(factor)
