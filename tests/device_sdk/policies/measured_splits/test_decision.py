from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_sdk.errors import UsageError
from device_sdk.policies.measured_splits.decision import choose
from device_sdk.policies.measured_splits.fastest import SplitLimits
from device_sdk.policies.planning.front import split_front
from device_sdk.policies.splitting.path_splits import JpegCoding
from device_sdk.supernet.cost import MB, Uplink
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Plan, Split
from tests.device_sdk.policies.splitting.codings import coded


class Judge:
    """Drops and errors by formula."""

    def __init__(self, drop, error=lambda position, bits: 0.0, caution=lambda cost: 0.0):
        self.drop, self.caution, self._error = drop, caution, error

    def coding(self, position, bits, per_channel):
        return None if per_channel else coded(error=self._error(position, bits))


@pytest.fixture
def decide(bundle, slow_profile):
    """A decision for a device 50 times slower than its server."""

    def run(*, mbps=0.1, sends_input=True, device_factor=50, jpeg=None, fallback=None, exits=(), **limits):
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
            device_factor=device_factor,
            jpeg=jpeg,
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
    found = decide(max_drop=0.01, judge=Judge(lambda cost: 0.0 if set(cost.bits) <= {8, 4} else 0.5))
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
        decide(memory_mb=1e-6, max_drop=0.01, judge=Judge(lambda cost: 1 / cost.bits[0]))
    assert "cut point 0 in 8 bits and loses 0.125" in caught.value.hint


@pytest.mark.parametrize(
    "limits",
    [
        {"memory_mb": 0},
        {"memory_mb": float("nan")},
        {"max_drop": 0.1},
        {"max_drop": -1, "judge": Judge(abs)},
        {"storage_mb": -1},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(UsageError):
        SplitLimits(**limits)


def test_other_renditions_of_the_device_s_part_go_into_the_plan_where_they_keep_the_drop(decide):
    judge = Judge(lambda cost: 0.0 if set(cost.bits) <= {8} else 0.5)
    found = decide(max_drop=0.01, judge=judge, device_factor=1, mbps=1e-3, sends_input=False)
    assert found.best.position == 5  # nothing is sent over such a line
    assert found.plan.split is None
    assert [str(edge) for edge in found.plan.subnet.edges] == ["o0", "o1@int8", "o2", "o3", "o4"]
    assert found.best.latency_ms == found.on_device.latency_ms - 50


def test_behind_a_split_the_plan_s_own_rest_stays(decide):
    def drop(cost):
        return 0.0 if cost.position == 2 and "o1@int8" in map(str, cost.head) else 0.5

    found = decide(max_drop=0.01, judge=Judge(drop), sends_input=False, device_factor=1)
    assert found.plan.split.position == 2
    assert [str(edge) for edge in found.plan.subnet.edges] == ["o0", "o1@int8", "o2", "o3", "o4"]
    assert {edge.rendition for edge in found.plan.split.tail} == {"fp32"}


def test_storage_is_a_limit_of_its_own(decide):
    sizes = sorted({cost.stored_bytes for cost in decide().costs})
    found = decide(storage_mb=sizes[1] / MB)
    assert found.best.stored_bytes <= sizes[1]
    with pytest.raises(UsageError, match="1e-06 MB of storage, and its input may not be sent"):
        decide(storage_mb=1e-6, sends_input=False)


def test_without_a_drop_nothing_is_lost(decide):
    found = decide(judge=Judge(lambda cost: 0.0))
    assert {cost.bits for cost in found.costs if cost.bits} == {(8,)}
    assert {edge.rendition for cost in found.costs for edge in cost.head} == {"fp32"}


def test_at_a_cut_point_what_has_more_error_than_a_way_that_failed_is_not_measured(decide):
    measured = []

    def drop(cost):
        measured.append(cost)
        return 0.5

    with pytest.raises(UsageError):
        decide(max_drop=0.01, memory_mb=1e-6, judge=Judge(drop, lambda position, bits: 8.0 - bits))
    assert [cost.bits for cost in measured] == [(8,)], "fewer bits have more error than eight, which failed"


def test_the_fewest_bits_that_lose_little_enough_are_bisected(decide):
    measured = []

    def drop(cost):
        measured.append(cost)
        return 0.0 if not cost.bits or cost.bits[0] >= 3 else 0.5

    found = decide(max_drop=0.01, memory_mb=1e-6, judge=Judge(drop, lambda position, bits: 8.0 - bits))
    assert found.best.bits == (3,)
    assert len(measured) <= 1 + 3, "eight bits, and half of what is left three times"
    assert not found.not_measured


def test_a_drop_that_chance_may_explain_has_to_stay_further_below_the_limit(decide):
    judge = Judge(lambda cost: 0.008 if cost.tail else 0.0, caution=lambda cost: 0.004 if cost.tail else 0.0)
    found = decide(max_drop=0.01, mbps=100.0, judge=judge)
    assert not found.best.tail
    assert "lose too much accuracy" in found.reason


def test_without_time_the_best_plain_way_is_taken_and_the_rest_is_said_to_be_unknown(decide):
    measured = []

    def drop(cost):
        measured.append(cost)
        return 0.0

    found = decide(max_drop=0.01, measured_s=0.0, mbps=1.0, judge=Judge(drop))
    assert found.best in measured
    assert set(found.best.bits) <= {8}
    assert found.not_measured
    assert f"{len(found.not_measured)} were not measured" in found.reason
    assert all(cost.latency_ms < found.best.latency_ms for cost in found.not_measured)


def test_nothing_that_keeps_the_drop_is_faster_than_what_is_chosen(decide):
    """Against measuring every way, where more bits and the plan's own renditions never lose more."""

    def drop(cost):
        lost = 0.0 if not cost.bits else 0.02 * (8 - cost.bits[0]) / (1 + cost.position)
        return lost + 0.01 * sum("int8" in str(edge) for edge in cost.head)

    def error(position, bits):
        return 0.02 * (8 - bits) / (1 + position)

    for mbps in (0.1, 1.0, 10.0):
        for max_drop in (0.0, 0.011, 0.05):
            found = decide(max_drop=max_drop, mbps=mbps, judge=Judge(drop, error))
            passing = [cost for cost in found.costs if drop(cost) <= max_drop + 1e-9]
            assert found.best.latency_ms == min(cost.latency_ms for cost in passing)


@given(
    mbps=st.sampled_from([0.01, 0.1, 1.0, 30.0]),
    device_factor=st.sampled_from([0.2, 1.0, 5.0, 50.0]),
    memory_mb=st.sampled_from([None, 3.0, 7.0, 20.0]),
    storage_mb=st.sampled_from([None, 0.01, 0.02]),
    seed=st.integers(0, 2**32 - 1),
    failing=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_chosen_is_slower_than_device_or_server_alone(
    decide, mbps, device_factor, memory_mb, storage_mb, seed, failing
):
    def drop(cost):
        random = np.random.default_rng([seed, cost.position, len(cost.tail), *cost.bits])
        return 0.0 if cost.position == 5 and "o1" in map(str, cost.head) else float(random.random() < failing)

    limits = {"memory_mb": memory_mb, "storage_mb": storage_mb, "max_drop": 0.01, "judge": Judge(drop)}
    try:
        found = decide(mbps=mbps, device_factor=device_factor, **limits)
    except UsageError:
        found = None
    every = decide(mbps=mbps, device_factor=device_factor).costs
    alone = [cost for cost in (every[0], every[-1]) if SplitLimits(**limits).fits(cost) and drop(cost) <= 0.01]
    if found is None:
        assert not alone
    else:
        assert SplitLimits(**limits).fits(found.best)
        assert drop(found.best) <= 0.01
        assert all(found.best.latency_ms <= cost.latency_ms for cost in alone)


SMALL = JpegCoding(size_bytes=1, encoding_ms=0.01, decoding_ms=0.01)


def lossy_bits(cost):
    return 0.0 if set(cost.bits) <= {8} else 0.5


def test_the_cheaper_transport_of_the_input_wins_where_it_keeps_the_drop(decide, bundle):
    found = decide(max_drop=0.01, judge=Judge(lossy_bits), jpeg=SMALL, memory_mb=1e-6)
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
        found = decide(max_drop=0.01, judge=Judge(drop_of), jpeg=jpeg, memory_mb=1e-6)
        assert (found.best.sends, found.best.position, set(found.best.bits)) == ("activations", 0, {8})
    assert any(cost.sends == "jpeg" for cost in found.costs)


def test_pixels_go_to_the_model_that_takes_them_and_lose_nothing(decide, bundle):
    jpeg = dataclasses.replace(SMALL, size_bytes=10**6, pixels=SMALL)
    found = decide(max_drop=0.0, judge=Judge(lambda cost: 0.0 if cost.sends == "images" else 0.5), jpeg=jpeg)
    assert found.best.sends == "images"
    assert found.plan.split.is_whole
    assert found.plan.split.server.model == f"{bundle.manifest.name}:images"


def test_a_jpeg_is_an_input_that_privacy_may_forbid(decide):
    found = decide(sends_input=False, jpeg=SMALL)
    assert all(cost.sends == "activations" and cost.position for cost in found.costs)


def test_where_the_jpeg_is_the_nearest_it_is_named(decide):
    with pytest.raises(UsageError, match="no split loses at most") as caught:
        decide(
            memory_mb=1e-6, max_drop=0.01, jpeg=SMALL, judge=Judge(lambda cost: 0.1 if cost.sends == "jpeg" else 0.5)
        )
    assert "the nearest sends the input as JPEG and loses 0.1" in caught.value.hint


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

    found = decide(mbps=100.0, max_drop=0.1, judge=Judge(drop))
    front = split_front(bundle, found, SplitLimits(None, 0.1, Judge(drop)))
    positions = {None if one.plan.split is None else one.plan.split.position for one in front.offers}
    assert positions & {2, 3, 4}
    assert not positions & {0, 1}


def test_a_device_without_the_rest_moves_among_its_own_cut_points(decide, bundle):
    found = decide(mbps=100.0, fallback="abstain")
    held = tuple(cost for cost in found.costs if 0 < cost.position <= 3)
    front = split_front(bundle, dataclasses.replace(found, costs=held), SplitLimits())
    assert front.best(None).plan.split.position == max(one.plan.split.position for one in front.offers)
    assert all(0 < one.plan.split.position <= 3 for one in front.offers)


def test_a_few_ways_of_little_error_are_tried_before_all_others(decide):
    measured = []

    def drop(cost):
        measured.append(cost)
        return 0.5 if cost.bits and cost.bits[0] < 3 else 0.0

    found = decide(max_drop=0.01, judge=Judge(drop, lambda position, bits: 0.01 * 2 ** (8 - bits)))
    fastest_kept = min(cost.latency_ms for cost in found.costs if not cost.bits or cost.bits[0] >= 3)
    assert found.best.latency_ms == fastest_kept
    tried = next(place for place, cost in enumerate(measured) if cost == found.best)
    assert tried <= 8, "the errors led there, not the bisection of every cut point"
