from __future__ import annotations

import math

import pytest

from device_sdk.policies.measured_splits.device_alone import DeviceAlone, confirmed
from device_sdk.policies.measured_splits.fastest import Fastest, SplitLimits
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.supernet.plan import Edge, Subnet


def head(*renditions):
    return tuple(Edge(f"o{number}", name) for number, name in enumerate(renditions))


def whole(device_ms, *renditions):
    return SplitCost(3, device_ms, 0.0, 0.0, 0, head=head(*renditions))


PLAIN = whole(10.0, "fp32", "fp32", "fp32")
UNIFORM = whole(5.2, "int8", "int8", "int8")
MIXED = whole(5.0, "int8", "fp32", "int8")
SPLIT = SplitCost(1, 1.0, 3.8, 0.2, 100, tail=head("fp32", "fp32")[1:], bits=(8,), head=head("int8"))


class Judge:
    """Nothing is lost but by ``losing``."""

    def __init__(self, losing=()):
        self.losing, self.measured = losing, []

    def drop(self, cost):
        self.measured.append(cost)
        return 0.5 if cost.head in self.losing else 0.0

    def caution(self, cost):
        return 0.0

    def coding(self, position, bits, per_channel):
        return None


class Stopwatch:
    """Ratios to the plain path by renditions; remembers what was timed in turns."""

    def __init__(self, **ratios):
        self.by_head = {UNIFORM.head: ratios.get("uniform", 0.5), MIXED.head: ratios.get("mixed", 0.5)}
        self.timed = []

    def __call__(self, subnets):
        self.timed.append([one.edges for one in subnets])
        return [1.0, *(self.by_head[one.edges] for one in subnets[1:])]


def decided(best, costs=(PLAIN, UNIFORM, MIXED), *, error=0.05, losing=(), drops=(), **ratios):
    watch, judge = Stopwatch(**ratios), Judge(losing)
    limits = SplitLimits(max_drop=0.01, judge=judge)
    alone = DeviceAlone(Subnet(PLAIN.head), watch, error)
    costs, found = confirmed(costs, Fastest(best, ((best, 0.0), *drops)), limits, alone)
    return found.best, watch, costs


@pytest.mark.parametrize(("uniform", "mixed", "expected"), [(0.5, 0.51, UNIFORM), (0.5, 0.45, MIXED)])
def test_ways_within_the_error_are_timed_in_turns_and_the_faster_is_taken(uniform, mixed, expected):
    best, watch, _ = decided(MIXED, uniform=uniform, mixed=mixed)
    assert best.head == expected.head
    assert watch.timed == [[PLAIN.head, UNIFORM.head, MIXED.head]]
    assert best.device_ms == pytest.approx(10.0 * min(uniform, mixed)), "measured, at the scale of the plain path"


def test_of_ways_that_are_as_fast_the_one_in_fewest_renditions_is_taken():
    assert decided(MIXED, uniform=0.5, mixed=0.499)[0].head == UNIFORM.head


def test_a_lead_beyond_the_error_needs_no_rival():
    far = whole(7.0, "int8", "int8", "int8")
    best, watch, _ = decided(MIXED, (PLAIN, far, MIXED), mixed=0.6)
    assert best.head == MIXED.head
    assert watch.timed == [[PLAIN.head, MIXED.head]]


def test_a_large_error_lets_more_ways_compete():
    far = whole(7.0, "int8", "int8", "int8")
    best, _, _ = decided(MIXED, (PLAIN, far, MIXED), error=0.5, uniform=0.4, mixed=0.6)
    assert best.head == UNIFORM.head


def test_a_way_that_loses_too_much_is_not_timed():
    best, watch, _ = decided(MIXED, losing=(UNIFORM.head,), uniform=0.1)
    assert best.head == MIXED.head
    assert watch.timed == [[PLAIN.head, MIXED.head]]


def test_a_measurement_that_disappoints_makes_room_for_others():
    best, _, costs = decided(MIXED, (PLAIN, MIXED, SPLIT), drops=((SPLIT, 0.0),), mixed=0.9)
    assert best == SPLIT
    assert [cost.device_ms for cost in costs if cost.head == MIXED.head] == [9.0]


def test_without_rivals_nothing_is_timed():
    fast = SplitCost(1, 0.1, 0.1, 0.1, 100, tail=SPLIT.tail, bits=(8,), head=head("int8"))
    best, watch, _ = decided(fast, (PLAIN, UNIFORM, fast))
    assert (best, watch.timed) == (fast, [])


def test_a_path_that_could_not_be_timed_keeps_its_prediction():
    best, _, _ = decided(MIXED, uniform=math.inf, mixed=math.inf)
    assert best == MIXED
