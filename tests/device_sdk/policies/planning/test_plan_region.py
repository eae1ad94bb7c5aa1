from __future__ import annotations

import pytest

from device_sdk.policies.planning.plan_region import PlanRegion, kind_of
from device_sdk.progress import SilentProgress
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Abstain
from tests.device_sdk.policies.planning.exit_and_server import World


@pytest.fixture
def world(elastic_supernet):
    return World(elastic_supernet)


def cells(world, *, uplinks=(0.001, 1000.0), factors=(1.0, 100.0), drops=(0.0, 0.5), **limits):
    accuracy = float(world.evidence.right(world.evidence.ends[world.subnet]).mean())
    requirement = Requirement(coverage=0.9, **limits)
    region = PlanRegion(world.slower, world.network, requirement, accuracy)
    return {
        (one.max_drop, one.device_factor, one.mbps): one
        for one in region.cells(uplinks, factors, drops, progress=SilentProgress())
    }


def test_a_fast_device_behind_a_slow_line_answers_itself_and_a_slow_one_behind_a_fast_line_sends(world):
    found = cells(world)
    assert len(found) == 8
    assert found[0.0, 1.0, 0.001].kind in ("device", "exits")
    assert found[0.0, 100.0, 1000.0].kind == "server"


def test_what_loses_more_than_allowed_is_in_no_cell(world):
    full = float(world.evidence.right(world.evidence.ends[world.subnet]).mean())
    for (drop, _, _), cell in cells(world).items():
        assert all(way.cost.accuracy >= full - drop for way in cell.fastest.values())
        assert all(way.cost.coverage == 1 for way in cell.fastest.values()), "a map has no plans that abstain"
        assert not any(isinstance(way.plan.hard, Abstain) for way in cell.fastest.values())


def test_a_larger_drop_is_never_slower(world):
    found = cells(world)
    for (drop, factor, mbps), cell in found.items():
        assert cell.best.latency_ms >= found[0.5, factor, mbps].best.latency_ms or drop == 0.5


def test_each_way_stands_under_its_own_kind_and_takes_it(world):
    ways = [(kind, way) for cell in cells(world).values() for kind, way in cell.fastest.items()]
    assert {"device", "exits", "ask", "split", "server"} <= {kind for kind, _ in ways}
    assert all(kind_of(way.plan) == kind for kind, way in ways)
    assert all(way.cost.share_asked > 0 for kind, way in ways if kind == "ask")
    assert all(way.cost.share_early > 0 for kind, way in ways if kind == "exits")


def test_other_limits_of_the_goal_hold_in_all_cells(world):
    assert {one.kind for one in cells(world, bytes_sent=0.0).values()} <= {"device", "exits"}
