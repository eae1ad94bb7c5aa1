from __future__ import annotations

import math

import msgspec
import pytest

from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.planning.front import Offer, PlanFront, Way, make_front
from device_sdk.supernet.cost import Power, Uplink
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Ask, Edge, ExitChoice, MaxConfidence, Plan, Subnet
from tests.device_sdk.policies.planning.exit_and_server import SERVER, World

POWER = Power(active_w=2.0, radio_w=3.0, waiting_w=0.5)
UPLINKS = (Uplink(0.01, 300.0), Uplink(0.3, 20.0), Uplink(6.0, 8.0), Uplink(90.0, 1.0))
REQUIREMENT = Requirement(optimise="latency_ms", accuracy=0.8, coverage=0.9)


def front_of(world: World, requirement: Requirement = REQUIREMENT) -> PlanFront:
    return make_front(
        lambda there: world.planner.nearest(requirement, there, POWER),
        world.planner.route,
        requirement,
        world.network,
        POWER,
    )


@pytest.fixture
def world(elastic_supernet):
    return World(elastic_supernet)


@pytest.mark.parametrize("uplink", UPLINKS, ids=lambda one: f"{one.mbps:g}")
def test_an_offer_costs_on_any_network_what_expected_cost_says(world, uplink):
    options = world.planner.nearest(REQUIREMENT, world.network, POWER).by_kind
    assert {"subnet", "exits", "ask", "split", "remote", "exits + split + abstain"} <= set(options)
    for option in options.values():
        offer = Offer.of(option.plan, world.planner.route(option.plan, world.network), world.network.uplink)
        found = msgspec.structs.asdict(offer.cost(uplink, POWER))
        there = expected_cost(world.supernet, option.plan, world.evidence, world.costs, world.at(uplink), POWER)
        assert found == pytest.approx(msgspec.structs.asdict(there)), option.plan.kind


def test_an_offer_that_asks_from_an_exit_costs_what_expected_cost_says(world):
    exits = (ExitChoice("x1", 0.9, ask_below=0.6),)
    plan = Plan(world.subnet, exits, hard=Ask(MaxConfidence(0.5), SERVER))
    offer = Offer.of(plan, world.planner.route(plan, world.network), world.network.uplink)
    for uplink in UPLINKS:
        there = expected_cost(world.supernet, plan, world.evidence, world.costs, world.at(uplink), POWER)
        assert there.share_asked > there.share_asked_early > 0
        assert msgspec.structs.asdict(offer.cost(uplink, POWER)) == pytest.approx(msgspec.structs.asdict(there))


def test_out_of_reach_only_plans_that_stay_here_have_a_known_time(world):
    front = front_of(world)
    for offer in front.offers:
        sends = any(way.sent_bytes for way in offer.ways)
        assert (offer.cost(None, POWER).latency_ms is None) == sends
    assert front.best(None).cost.bytes_sent == 0


@pytest.mark.parametrize("optimise", ["latency_ms", "energy_mj", "bytes_sent", "accuracy"])
def test_what_is_kept_is_nearly_as_good_as_planning_again(world, optimise):
    requirement = Requirement(optimise=optimise, accuracy=0.75, latency_ms=70.0)
    front = front_of(world, requirement)
    for uplink in UPLINKS:
        kept, anew = front.best(uplink), world.planner.nearest(requirement, world.at(uplink), POWER)
        assert requirement.excess(kept.cost) <= requirement.excess(anew.cost) + 0.05
        short = requirement.value(anew.cost) - requirement.value(kept.cost)
        assert short <= 0.1 * abs(requirement.value(anew.cost))


def test_the_best_plan_changes_with_the_network_and_each_that_is_kept_is_the_best_somewhere(world):
    front = front_of(world)
    kinds = {front.best(uplink).plan.kind for uplink in (*UPLINKS, None)}
    assert len(kinds) > 1
    assert len({offer.plan for offer in front.offers}) == len(front.offers) < 30


def test_a_front_is_the_same_after_it_was_stored(world):
    front = front_of(world)
    assert msgspec.json.decode(msgspec.json.encode(front), type=PlanFront) == front


def test_plans_of_another_bundle_and_numbers_that_make_no_sense_are_left_out(world):
    front = front_of(world)
    stranger = msgspec.structs.replace(front.offers[0], plan=Plan(Subnet((Edge("nowhere"),))))
    endless = msgspec.structs.replace(front.offers[0], ways=(Way(10**9, 1.0),))
    unknown = msgspec.structs.replace(front.offers[0], ways=(Way(1, math.inf),))
    empty = msgspec.structs.replace(front.offers[0], ways=())
    spoiled = msgspec.structs.replace(front, offers=(stranger, endless, unknown, empty, front.offers[0]))
    assert spoiled.known_to(world.supernet).offers == front.offers[:1]
    assert msgspec.structs.replace(front, offers=(stranger,)).known_to(world.supernet) is None
