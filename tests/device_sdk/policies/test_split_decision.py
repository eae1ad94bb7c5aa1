from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from device_sdk.policies.split_decision import SplitLimits, choose
from device_sdk.supernet.cost import MB, Uplink
from device_sdk.supernet.plan import Plan


@pytest.fixture
def decide(bundle, slow_profile):
    """A decision for a device 50 times slower than its server."""

    def run(*, mbps=0.1, sends_input=True, **limits):
        costs = slow_profile.cost_model()
        return choose(
            bundle,
            Plan(bundle.supernet.original),
            costs,
            costs,
            Uplink(mbps),
            model_name="tiny:tail",
            source="a test's",
            sends_input=sends_input,
            limits=SplitLimits(**limits),
            device_factor=50,
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
