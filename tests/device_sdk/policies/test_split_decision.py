from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from device_sdk.policies.split_decision import SplitLimits, choose
from device_sdk.policies.splitting.handling import JpegCoding
from device_sdk.supernet.cost import MB, Uplink
from device_sdk.supernet.plan import Plan


@pytest.fixture
def decide(bundle, slow_profile):
    """A decision for a device 50 times slower than its server."""

    def run(*, mbps=0.1, sends_input=True, jpeg=None, **limits):
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
            jpeg=jpeg,
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


SMALL = JpegCoding(size_bytes=1, encoding_ms=0.01, decoding_ms=0.01)


def lossy_bits(cost):
    return 0.0 if set(cost.bits) <= {8} else 0.5


def test_the_cheaper_transport_of_the_input_wins_where_it_keeps_the_drop(decide, bundle):
    found = decide(max_drop=0.01, drop_of=lossy_bits, jpeg=SMALL, memory_mb=1e-6)
    assert found.best.sends == "jpeg"
    assert found.best.packing_ms == pytest.approx(50 * SMALL.encoding_ms)  # coded on the slow device
    assert found.plan.split.is_whole
    assert found.plan.split.server.model == f"{bundle.manifest.name}:jpeg"
    assert found.plan.split.server.digest == bundle.digest


def test_raw_pixels_travel_where_jpeg_loses_too_much_or_is_larger(decide):
    def lossy_jpeg(cost):
        return 0.5 if cost.sends == "jpeg" else lossy_bits(cost)

    large = JpegCoding(size_bytes=10**7)
    for jpeg, drop_of in ((SMALL, lossy_jpeg), (large, lossy_bits)):
        found = decide(max_drop=0.01, drop_of=drop_of, jpeg=jpeg, memory_mb=1e-6)
        assert (found.best.sends, found.best.position, set(found.best.bits)) == ("activations", 0, {8})
    assert any(cost.sends == "jpeg" for cost in found.costs)


def test_a_jpeg_is_an_input_that_privacy_may_forbid(decide):
    found = decide(sends_input=False, jpeg=SMALL)
    assert all(cost.sends == "activations" and cost.position for cost in found.costs)


def test_where_the_jpeg_is_the_nearest_it_is_named(decide):
    with pytest.raises(UsageError, match="no split loses at most") as caught:
        decide(memory_mb=1e-6, max_drop=0.01, jpeg=SMALL, drop_of=lambda cost: 0.1 if cost.sends == "jpeg" else 0.5)
    assert "the nearest sends the input as JPEG and loses 0.1" in caught.value.hint
