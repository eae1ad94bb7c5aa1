from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.search.nearby import fastest_within, require_feasible, smallest_subnet
from device_sdk.supernet.cost import MB, Budget, CostModel, EdgeCost

limits_mb = st.integers(1, 120)


@given(data=st.data())
def test_the_smallest_subnet_has_the_least_peak_memory_of_all(priced_supernets, all_subnets, data):
    supernet, model = data.draw(priced_supernets)
    smallest = smallest_subnet(supernet, model)
    supernet.check(smallest)
    assert model.peak_bytes(smallest) == min(map(model.peak_bytes, all_subnets(supernet)))


@given(data=st.data(), memory_mb=st.one_of(st.none(), limits_mb))
def test_the_fastest_within_a_memory_limit_equals_brute_force(priced_supernets, all_subnets, data, memory_mb):
    supernet, model = data.draw(priced_supernets)
    found = fastest_within(supernet, model, memory_mb=memory_mb)
    fitting = [
        model.latency_ms(subnet)
        for subnet in all_subnets(supernet)
        if memory_mb is None or model.peak_bytes(subnet) <= memory_mb * MB
    ]
    assert (found is None) == (not fitting)
    if found is not None:
        supernet.check(found)
        assert model.latency_ms(found) == min(fitting)
        assert memory_mb is None or model.peak_bytes(found) <= memory_mb * MB


@given(
    data=st.data(),
    latency_ms=st.one_of(st.none(), st.integers(1, 200).map(lambda eighths: eighths / 8)),
    memory_mb=st.one_of(st.none(), limits_mb),
)
def test_a_budget_is_feasible_exactly_if_some_subnet_fits(priced_supernets, all_subnets, data, latency_ms, memory_mb):
    assume(latency_ms or memory_mb)
    supernet, model = data.draw(priced_supernets)
    budget = Budget(latency_ms=latency_ms, memory_mb=memory_mb)
    if any(budget.fits(model.cost(subnet)) for subnet in all_subnets(supernet)):
        assert budget.fits(model.cost(require_feasible(supernet, model, budget)))
        return
    with pytest.raises(InfeasibleBudgetError) as caught:
        require_feasible(supernet, model, budget)
    name, limit = caught.value.hint.removeprefix("set ").removesuffix(" or more").split(" to ")
    nearer = {"latency_ms": latency_ms, "memory_mb": memory_mb, name: float(limit)}
    if name == "memory_mb" and latency_ms is not None:
        nearer["latency_ms"] = max(latency_ms, caught.value.nearest_latency_ms)
    require_feasible(supernet, model, Budget(**nearer))  # following the hint helps


def test_too_little_time_names_the_fastest_subnet(build_supernet):
    supernet = build_supernet(2)
    model = CostModel({edge: EdgeCost(0.4151, 0.5, 1, 1) for edge in supernet.edges})
    with pytest.raises(InfeasibleBudgetError) as caught:
        require_feasible(supernet, model, Budget(latency_ms=0.5))
    error = caught.value
    assert str(error) == "no subnet runs in 0.5 ms; the fastest is predicted at 0.83 ms (o0 o1)"
    assert error.hint == "set latency_ms to 0.831 or more"
    assert (error.nearest, error.nearest_latency_ms, error.nearest_peak_bytes) == (("o0", "o1"), 0.8302, 3)


def test_too_little_memory_names_the_smallest_subnet(build_supernet):
    supernet = build_supernet(9)
    model = CostModel({edge: EdgeCost(1, 1, 1_000_000, 500_000) for edge in supernet.edges})
    with pytest.raises(InfeasibleBudgetError) as caught:
        require_feasible(supernet, model, Budget(latency_ms=0.5, memory_mb=4))
    assert str(caught.value) == ("no subnet runs in 4 MB; the smallest is predicted at 9.5 MB (o0 o1 o2 … o7 o8)")
    assert caught.value.nearest == supernet.original.block_ids


def test_time_and_memory_that_only_conflict_together_name_the_fastest_within_the_memory(build_supernet):
    supernet = build_supernet(2, [(0, 2)])
    o0, o1, merged = supernet.original.edges[0], supernet.original.edges[1], supernet.edges[1]
    costs = {o0: EdgeCost(5, 5, 10**6, 0), o1: EdgeCost(5, 5, 10**6, 0), merged: EdgeCost(1, 1, 10**7, 0)}
    with pytest.raises(InfeasibleBudgetError, match=r"in 3 ms within 4 MB; the fastest .* at 10 ms"):
        require_feasible(supernet, CostModel(costs), Budget(latency_ms=3, memory_mb=4))
