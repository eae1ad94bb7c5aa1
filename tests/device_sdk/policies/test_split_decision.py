from __future__ import annotations

import dataclasses

import pytest

from device_sdk.errors import UsageError
from device_sdk.policies.split_decision import SplitLimits, choose
from device_sdk.policies.split_front import split_front
from device_sdk.supernet.cost import MB, Uplink
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Plan, Split


@pytest.fixture
def decide(bundle, slow_profile):
    """A decision for a device 50 times slower than its server."""

    def run(*, mbps=0.1, sends_input=True, fallback=None, exits=(), **limits):
        costs = slow_profile.cost_model()
        return choose(
            bundle,
            Plan(bundle.supernet.original, exits=exits),
            costs,
            costs,
            Uplink(mbps),
            model_name="tiny:tail",
            source="a test's",
            sends_input=sends_input,
            limits=SplitLimits(**limits),
            device_factor=50,
            fallback=fallback,
        )

    return run


def test_without_limits_the_fastest_is_taken_in_eight_bits(decide):
    found = decide()
    assert found.best.latency_ms == min(cost.latency_ms for cost in found.costs)
    assert {cost.bits for cost in found.costs if cost.bits} == {(8,)}
    assert found.reason == "nothing is faster"
    assert found.plan.split.bits == (8,)


def test_fewer_bits_go_into_the_plan_where_they_keep_the_drop(decide):
    found = decide(max_drop=0.01, drop_of=lambda cost: 0.0 if set(cost.bits) <= {8, 4} else 0.5)
    assert set(found.plan.split.bits) == {4}
    assert "lose too much accuracy" in found.reason
    assert found.drop_of(found.best) == 0.0


def test_the_device_s_part_keeps_the_memory(decide):
    sizes = sorted({cost.device_bytes for cost in decide().costs})
    found = decide(memory_mb=sizes[1] / MB)
    assert found.best.device_bytes <= sizes[1]


def test_memory_below_any_part_leaves_the_server_if_it_may_see_inputs(decide):
    assert decide(memory_mb=1e-6).best.position == 0
    with pytest.raises(UsageError, match="its input may not be sent") as caught:
        decide(memory_mb=1e-6, sends_input=False)
    assert "cut point 1" in caught.value.hint


def test_where_nothing_keeps_the_drop_the_nearest_is_named(decide):
    with pytest.raises(UsageError, match=r"no split loses at most 0\.01") as caught:
        decide(memory_mb=1e-6, max_drop=0.01, drop_of=lambda cost: 1 / cost.bits[0])
    assert "cut point 0 in 8 bits and loses 0.125" in caught.value.hint


@pytest.mark.parametrize(
    "limits", [{"memory_mb": 0}, {"memory_mb": float("nan")}, {"max_drop": 0.1}, {"max_drop": -1, "drop_of": abs}]
)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(UsageError):
        SplitLimits(**limits)


def test_the_subnet_is_the_fallback_where_the_memory_allows_it(decide):
    found = decide(mbps=100.0)
    assert found.plan.split.fallback == "subnet"
    assert found.plan.exits == ()
    whole = found.on_device.device_bytes
    assert decide(mbps=100.0, memory_mb=whole / MB).plan.split.fallback == "subnet"
    assert decide(mbps=100.0, memory_mb=(whole - 1) / MB).plan.split.fallback != "subnet"


def test_an_exit_as_fallback_counts_in_the_memory_and_answers_nothing_else(decide, slow_profile):
    found = decide(mbps=0.1, sends_input=False, fallback="exit")
    beside = {cost.position: cost.device_bytes for cost in found.costs}
    alone = {cost.position: cost.device_bytes for cost in decide(sends_input=False, fallback="abstain").costs}
    exit_bytes = slow_profile.cost_model().exit_bytes(ExitChoice("x1-pooled", 1.0))
    assert beside[1] == alone[1] + exit_bytes
    assert beside[5] == alone[5]  # nothing falls back on the device alone
    plan = with_split_at(found, 2)
    assert plan.split.fallback == "exit"
    assert [choice.exit for choice in plan.exits] == ["x2-untrained"]
    assert plan.exits[-1].threshold == UNREACHABLE_CONFIDENCE


def test_the_plans_own_last_exit_before_the_cut_is_the_fallback(decide):
    own = (ExitChoice("x1-pooled", 0.9), ExitChoice("x3-pooled", 0.8))
    found = decide(fallback="exit", exits=own)
    assert with_split_at(found, 2).exits == own[:1]
    assert with_split_at(found, 3).exits == own
    assert with_split_at(found, 3).split.fallback == "exit"


def test_where_no_exit_lies_before_the_cut_the_plan_abstains(decide):
    plan = with_split_at(decide(mbps=100.0, fallback="exit"), 0)
    assert (plan.split.fallback, plan.exits) == ("abstain", ())


def test_a_subnet_that_does_not_fit_is_no_fallback(decide):
    with pytest.raises(UsageError, match="the subnet as fallback takes"):
        decide(memory_mb=1e-6, fallback="subnet")


def with_split_at(found, position):
    cost = next(cost for cost in found.costs if cost.position == position)
    return found.fallbacks.applied(Split(position, (8,), cost.tail, found.server))


def test_the_splits_for_other_networks_keep_the_limits_and_are_each_the_quickest_on_one(decide, bundle):
    found = decide(mbps=100.0, fallback="abstain", memory_mb=1e-6)
    front = split_front(bundle, found, SplitLimits(1e-6))
    assert [offer.plan.split.position for offer in front.offers] == [0]
    found = decide(mbps=100.0)
    front = split_front(bundle, found, SplitLimits())
    assert front.best(found.uplink).plan == found.plan
    assert front.best(Uplink(1e-6)).plan.split is None
    assert front.best(None).plan.split is None
    for uplink in (Uplink(1e-6), Uplink(1.0), Uplink(1000.0)):
        quickest = min(cost.latency_ms for cost in decide(mbps=uplink.mbps).costs)
        assert front.best(uplink).cost.latency_ms == pytest.approx(quickest, rel=1e-6)


def test_the_splits_for_other_networks_lose_no_more_than_is_allowed(decide, bundle):
    def drop(cost):
        return 0.5 if cost.tail and cost.position < 2 else 0.0

    found = decide(mbps=100.0, max_drop=0.1, drop_of=drop)
    front = split_front(bundle, found, SplitLimits(None, 0.1, drop))
    positions = {None if one.plan.split is None else one.plan.split.position for one in front.offers}
    assert positions & {2, 3, 4}
    assert not positions & {0, 1}


def test_a_device_without_the_rest_moves_among_its_own_cut_points(decide, bundle):
    found = decide(mbps=100.0, fallback="abstain")
    held = tuple(cost for cost in found.costs if 0 < cost.position <= 3)
    front = split_front(bundle, dataclasses.replace(found, costs=held), SplitLimits())
    assert front.best(None).plan.split.position == max(one.plan.split.position for one in front.offers)
    assert all(0 < one.plan.split.position <= 3 for one in front.offers)
