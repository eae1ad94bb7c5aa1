from __future__ import annotations

import itertools
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_sdk.errors import BudgetError, InfeasibleBudgetError, InputError, UsageError
from device_sdk.offload.remote_model import LogarithmicPool
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.costs.route import Route
from device_sdk.policies.costs.threshold_sweep import Crossing, Ranking, Sweep, sweep_splits
from device_sdk.policies.planning.planner import Planner
from device_sdk.policies.splitting.path_splits import Handling
from device_sdk.supernet.blocks import Exit, Golden, Rendition
from device_sdk.supernet.cost import CostModel, EdgeCost, Power, Uplink
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.goal import Requirement, best_plan
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import (
    UNREACHABLE_CONFIDENCE,
    Abstain,
    AnswerLocally,
    Ask,
    Entropy,
    ExitChoice,
    Logistic,
    Margin,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
)
from device_sdk.supernet.supernet import Supernet

COUNT, CLASSES = 40, 3
SERVER, TAILS = RemoteRef("big"), RemoteRef("model:tail", "0" * 64)
DECIDERS = (
    MaxConfidence(0.0),
    Entropy(0.0),
    Margin(0.0),
    Logistic(0.5, ("top_1", "top_2"), (3.0, -1.0), -1.0),
)
POWER = Power(active_w=2.0, radio_w=3.0, waiting_w=0.5)


class World:
    """A supernet of three cut points with an exit, random evidence, and a network with a server."""

    def __init__(self, elastic_supernet, seed: int) -> None:
        random = np.random.default_rng(seed)
        plain = elastic_supernet(3)
        rendition = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0))
        self.supernet = Supernet(plain.cut_points, plain.blocks, [Exit("x1", 1, "pooled", 1, 1, (rendition,))])
        times = random.uniform(1, 10, len(self.supernet.edges))
        edges = {
            edge: EdgeCost(time, time, 100, 10) for edge, time in zip(self.supernet.edges, times.tolist(), strict=True)
        }
        self.costs = CostModel(edges, exit_costs={("x1", "fp32", ()): EdgeCost(0.5, 0.5, 7, 1)})
        self.subnets = list(enumerate_subnets(self.supernet, limit=20))
        labels = random.integers(0, CLASSES, COUNT)

        def logits(skill: float):
            found = random.normal(size=(COUNT, CLASSES))
            found[np.arange(COUNT), labels] += skill
            return np.round(found * 4).astype(np.float32) / 4  # with ties

        heads = {one.edges[:1] for one in self.subnets if self.supernet.ends(one.edges[0])[1].index == 1}
        self.evidence = Evidence(
            labels,
            ends={subnet: logits(random.uniform(0.3, 1.5)) for subnet in self.subnets},
            exits={(head, "x1", "fp32"): logits(0.5) for head in heads},
            servers={SERVER: logits(3.0)},
        )
        self.exit_sets = {
            one: [(ExitChoice("x1", 0.6),)] for one in self.subnets if one.edges[:1] in heads and len(one.edges) > 1
        }
        self.network = Network(
            uplink=Uplink(random.uniform(0.1, 20), 2.0),
            server=CostModel({edge: EdgeCost(0.5, 0.5, 1, 1) for edge in self.supernet.edges}),
            answer_ms={SERVER: 1.0},
            input_bytes=500,
            handling=Handling(1e-3, 2e-3, 0.7, 1e-4),
        )

    def planner(self, **choices) -> Planner:
        given = {"exit_sets": self.exit_sets, "servers": [SERVER], "tail_server": TAILS} | choices
        return Planner(self.supernet, self.evidence, self.costs, self.subnets, **given)

    def cost(self, plan: Plan):
        return expected_cost(self.supernet, plan, self.evidence, self.costs, self.network, POWER)


CALL_TIMES = {
    "call_overhead_ms": 0.125,
    "decision_ms": {"max_confidence": 0.25, "margin": 0.3125, "entropy": 0.375, "logistic": 0.5, "router": 0.75},
}


@pytest.fixture
def make_world(elastic_supernet):
    return lambda seed: World(elastic_supernet, seed)


def test_pooled_answers_are_what_plans_that_ask_are_judged_by(make_world):
    world = make_world(3)
    subnet, pool = world.subnets[0], LogarithmicPool(2.0, 0.5)
    plan = Plan(subnet, hard=Ask(MaxConfidence(UNREACHABLE_CONFIDENCE), SERVER))
    own, server = world.evidence.ends[subnet], world.evidence.servers[SERVER]
    assert world.cost(plan).accuracy == (server.argmax(axis=1) == world.evidence.labels).mean()
    world.evidence = replace(world.evidence, pools={SERVER: pool})
    pooled = (2.0 * own + 0.5 * server).argmax(axis=1) == world.evidence.labels
    assert world.cost(plan).accuracy == pooled.mean() != (server.argmax(axis=1) == world.evidence.labels).mean()
    assert world.evidence.part(np.arange(10)).pools == {SERVER: pool}
    planner = world.planner(exit_sets={}, tail_server=None)
    asking = planner.nearest(Requirement(accuracy=0.7, optimise="latency_ms"), world.network, POWER).by_kind["ask"]
    assert asking.cost == world.cost(asking.plan)


@pytest.mark.parametrize("decider", DECIDERS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("policy", ["abstain", "ask", "ask a server of unknown answers"])
@pytest.mark.parametrize("exits", [False, True])
def test_the_sweep_of_a_threshold_says_of_each_what_expected_cost_says(make_world, decider, policy, exits):
    world = make_world(3)
    world.costs = msgspec.structs.replace(world.costs, **CALL_TIMES)
    subnet = next(iter(world.exit_sets))
    plan = Plan(subnet, exits=world.exit_sets[subnet][0] if exits else ())
    route = Route.to_end(world.supernet, plan, world.evidence, world.costs, world.network)
    server = SERVER if policy == "ask" else RemoteRef("other")
    hard = Abstain(decider) if policy == "abstain" else Ask(decider, server)
    asking = None if policy == "abstain" else route.asking(hard, world.network)
    found = Ranking.of(route, decider)
    costs = Sweep([found]).costs(asking, POWER)
    assert len(found.hardest) > 3
    for number, hardest in enumerate(found.hardest):
        at = msgspec.structs.replace(hard, decider=found.decider(number))
        cost = world.cost(msgspec.structs.replace(plan, hard=at))
        assert round((cost.share_asked + cost.share_abstained) * COUNT) == hardest
        for name in ("accuracy", "latency_ms", "p95_latency_ms", "energy_mj", "bytes_sent", "peak_bytes", "coverage"):
            column = getattr(costs, name)[number]
            expected = getattr(cost, name)
            assert math.isnan(column) if expected is None else column == pytest.approx(expected), name


REQUIREMENTS = [
    Requirement(accuracy=0.7, optimise="latency_ms"),
    Requirement(accuracy=0.8, optimise="energy_mj"),
    Requirement(accuracy=0.9, coverage=0.6, optimise="latency_ms"),
    Requirement(latency_ms=12.0),
    Requirement(p95_latency_ms=15.0, coverage=0.9),
    Requirement(bytes_sent=100, accuracy=0.6, optimise="latency_ms"),
    Requirement(accuracy=0.75, latency_ms=20.0, optimise="bytes_sent"),
]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda one: f"{one.optimise}")
@pytest.mark.parametrize("seed", range(4))
def test_no_plan_with_the_deciders_known_is_better_than_the_chosen_one(make_world, requirement, seed):
    world = make_world(seed)
    world.costs = msgspec.structs.replace(world.costs, **CALL_TIMES)
    judged = []
    for plan in (Plan(s, exits) for s in world.subnets for exits in ((), *world.exit_sets.get(s, ()))):
        judged.append((plan, world.cost(plan)))
        route = Route.to_end(world.supernet, plan, world.evidence, world.costs)
        for decider, asks in itertools.product(DECIDERS[:3], (False, True)):
            hard = Ask(decider, SERVER) if asks else Abstain(decider)
            found = Ranking.of(route, decider)
            for number in range(len(found.hardest)):
                at = msgspec.structs.replace(hard, decider=found.decider(number))
                one = msgspec.structs.replace(plan, hard=at)
                judged.append((one, world.cost(one)))
    try:
        _, expected = best_plan(judged, requirement)
    except InfeasibleBudgetError:
        expected = None
    try:
        choice = world.planner().best(requirement, world.network, POWER)
    except InfeasibleBudgetError:
        assert expected is None
        return
    assert not requirement.misses(choice.cost)
    assert choice.considered >= len(judged)
    if expected is not None:
        assert requirement.value(choice.cost) >= requirement.value(expected) - 1e-9


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda one: f"{one.optimise}")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_no_pair_of_an_exits_threshold_and_that_of_asking_is_better_than_the_chosen_plan(make_world, requirement, seed):
    world = make_world(seed)
    world.costs = msgspec.structs.replace(world.costs, **CALL_TIMES)
    judged = []
    for subnet in world.exit_sets:
        confidences = np.unique(confidence(world.evidence.exits[subnet.edges[:1], "x1", "fp32"]))
        for threshold in confidences.tolist():
            plan = Plan(subnet, (ExitChoice("x1", threshold),))
            rankings = [
                Ranking.of(Route.to_end(world.supernet, Plan(subnet), world.evidence, world.costs), DECIDERS[0])
            ]
            for number in range(len(rankings[0].hardest)):
                one = msgspec.structs.replace(plan, hard=Ask(rankings[0].decider(number), SERVER))
                judged.append((one, world.cost(one)))
    kept = [requirement.value(cost) for _, cost in judged if not requirement.misses(cost)]
    exits = {subnet: [ExitChoice("x1", 2.0)] for subnet in world.exit_sets}
    if not kept:
        return
    choice = world.planner(exits=exits).best(requirement, world.network, POWER)
    assert requirement.value(choice.cost) >= max(kept) - 1e-9
    assert not requirement.misses(choice.cost)


def test_exits_and_asking_are_optimised_together_where_that_is_best(make_world):
    world = make_world(0)
    subnet = next(iter(world.exit_sets))
    sure = np.eye(CLASSES, dtype=np.float32)[world.evidence.labels] * (np.arange(COUNT) % 2 * 3.0)[:, None]
    world.evidence = replace(world.evidence, exits={(subnet.edges[:1], "x1", "fp32"): sure.astype(np.float32)})
    world.subnets, world.exit_sets = [subnet], {}
    requirement = Requirement(accuracy=0.9, coverage=1.0, bytes_sent=400, optimise="latency_ms")
    apart = world.planner(tail_server=None).best(requirement, world.network, POWER)
    exits = {subnet: [ExitChoice("x1", 2.0)]}
    together = world.planner(tail_server=None, exits=exits).best(requirement, world.network, POWER)
    assert together.plan.kind == "exits + ask early"
    assert together.late.plan.kind == "exits + ask"
    assert together.cost.latency_ms < together.late.cost.latency_ms < apart.cost.latency_ms
    for one in (together, together.late):
        assert together.by_kind[one.plan.kind].plan == one.plan
        assert one.cost == world.cost(one.plan)


def test_asking_from_exits_is_planned_where_it_is_better_and_what_it_saves_is_told(make_world):
    kinds = set()
    for seed, optimise in itertools.product(range(4), ("latency_ms", "energy_mj")):
        world = make_world(seed)
        world.network = replace(world.network, uplink=Uplink(10.0, 6.0))
        requirement = Requirement(accuracy=0.75, coverage=1.0, optimise=optimise)
        exits = {subnet: [ExitChoice("x1", 2.0)] for subnet in world.exit_sets}
        choice = world.planner(exits=exits).nearest(requirement, world.network, POWER)
        kinds.add(choice.plan.kind)
        world.supernet.check_plan(choice.plan)
        assert choice.cost == world.cost(choice.plan)
        if not choice.plan.asks_early:
            assert (choice.late, choice.saved_by_asking_early) == (None, {})
            continue
        late = choice.late
        assert not late.plan.asks_early
        assert late.misses or requirement.value(choice.cost) > requirement.value(late.cost)
        assert choice.saved_by_asking_early["latency_ms"] == late.cost.latency_ms - choice.cost.latency_ms
        assert choice.cost.share_asked_early > 0
    assert "exits + ask early" in kinds


def test_the_best_limits_of_one_exit_are_found_with_asking_from_it(make_world):
    world = make_world(0)
    subnet = next(iter(world.exit_sets))
    at_exit = world.evidence.exits[subnet.edges[:1], "x1", "fp32"]
    coarse = np.eye(CLASSES, dtype=np.float32)[at_exit.argmax(axis=1)] * (np.arange(COUNT) % 5)[:, None]
    world.evidence = replace(world.evidence, exits={(subnet.edges[:1], "x1", "fp32"): coarse.astype(np.float32)})
    world.subnets, world.exit_sets = [subnet], {}
    requirement = Requirement(accuracy=0.85, coverage=1.0, optimise="latency_ms")
    route = Route.to_end(world.supernet, Plan(subnet), world.evidence, world.costs)
    values = [0.0, *np.unique(confidence(coarse)).tolist(), UNREACHABLE_CONFIDENCE]
    found = Ranking.of(route, MaxConfidence(0.0))
    deciders = [MaxConfidence(0.0), *(found.decider(number) for number in range(len(found.hardest)))]
    kept = []
    for ask_below, threshold in itertools.combinations_with_replacement(values, 2):
        exits = (ExitChoice("x1", threshold, ask_below=min(ask_below, 1.0)),)
        judged = [world.cost(Plan(subnet, exits, hard=Ask(decider, SERVER))) for decider in deciders]
        kept += [requirement.value(cost) for cost in judged if not requirement.misses(cost)]
    exits = {subnet: [ExitChoice("x1", 2.0)]}
    choice = world.planner(tail_server=None, exits=exits).best(requirement, world.network, POWER)
    assert requirement.value(choice.cost) >= max(kept) - 1e-9


def test_each_kind_has_its_best_plan_and_says_what_limits_it(make_world):
    world = make_world(1)
    choice = world.planner().best(Requirement(latency_ms=1000.0), world.network, POWER)
    assert {"subnet", "exits", "abstain", "ask", "exits + ask", "split", "remote"} <= set(choice.by_kind)
    for kind, option in choice.by_kind.items():
        assert option.plan.kind == kind
        assert option.misses == Requirement(latency_ms=1000.0).misses(option.cost)


def test_privacy_leaves_out_plans_that_send_more_than_is_allowed(make_world):
    world = make_world(1)
    requirement = Requirement(latency_ms=1000.0)
    kinds = {
        privacy: set(world.planner(privacy=privacy).best(requirement, world.network).by_kind)
        for privacy in ("never", "activations", "inputs")
    }
    assert not any("ask" in kind or "split" in kind or "remote" in kind for kind in kinds["never"])
    assert "split" in kinds["activations"]
    assert not any("ask" in kind or "remote" in kind for kind in kinds["activations"])
    assert {"ask", "remote"} <= kinds["inputs"]


def test_without_a_network_nothing_is_planned_whose_time_would_be_unknown(make_world):
    choice = make_world(1).planner().best(Requirement(latency_ms=1000.0))
    assert not isinstance(choice.plan.hard, Ask)
    assert choice.plan.split is None


@pytest.mark.parametrize("with_exit", [False, True])
def test_the_sweep_of_splits_says_of_each_what_expected_cost_says(make_world, with_exit):
    world = make_world(2)
    world.costs = msgspec.structs.replace(world.costs, **CALL_TIMES)
    subnet = next(one for one in world.exit_sets if len(one.edges) == 3)
    plan = Plan(subnet, world.exit_sets[subnet][0] if with_exit else ())
    splits = [Split(position, (8,), subnet.edges[position:], TAILS) for position in range(with_exit, 3)]
    route = Route.to_end(world.supernet, plan, world.evidence, world.costs)
    found = sweep_splits(route, [Crossing.of(route, one, world.network) for one in splits], POWER)
    for number, split in enumerate(splits):
        cost = world.cost(msgspec.structs.replace(plan, split=split))
        for name in ("accuracy", "latency_ms", "p95_latency_ms", "energy_mj", "bytes_sent", "peak_bytes", "coverage"):
            assert getattr(found.costs, name)[number] == pytest.approx(getattr(cost, name)), name
        crossed = route.crossed(split, world.network).cost(POWER)
        assert crossed == cost
    for name in ("latency_ms", "energy_mj", "bytes_sent"):
        own = [getattr(world.cost(msgspec.structs.replace(plan, split=one)), name) for one in splits]
        kept = [getattr(world.cost(msgspec.structs.replace(plan, split=one)), name) for one in found.extremes()]
        assert min(kept) == min(own)


def with_few_bits(world, bits=(4,)):
    """What tails answer in few bits, known at the cut points that are not a third of the way."""
    random = np.random.default_rng(9)
    received = {
        (subnet, block.start, bits): (logits + random.normal(scale=0.4, size=logits.shape)).astype(np.float32)
        for subnet, logits in world.evidence.ends.items()
        for _, block in list(world.supernet.walk(subnet))[1:]
        if block.start != 1
    }
    world.evidence = replace(world.evidence, received=received)
    return world


@pytest.mark.parametrize("seed", range(6))
def test_the_best_split_is_that_of_all_bits_of_which_it_is_known_what_they_lose(make_world, seed):
    world = with_few_bits(make_world(seed))
    world.network = replace(world.network, uplink=Uplink(0.05, 2.0))
    widths: dict = {}
    for subnet, position, bits in world.evidence.received:
        widths.setdefault((subnet, position), [(8,)]).append(bits)
    plans = [
        Plan(subnet, exits, Split(block.start, bits, subnet.edges[number:], TAILS))
        for subnet in world.subnets
        for exits in ((), *world.exit_sets.get(subnet, ()))
        for number, (_, block) in enumerate(world.supernet.walk(subnet))
        if block.start >= len(exits)
        for bits in widths.get((subnet, block.start), [(8,)])
    ]
    planner = world.planner()
    for accuracy in (0.3, 0.5, 0.6):
        requirement = Requirement(optimise="latency_ms", accuracy=accuracy, coverage=1.0)
        found = planner.best(requirement, world.network, POWER).by_kind
        for kind in ("split", "exits + split"):
            kept = [cost for plan in plans if plan.kind == kind and not requirement.misses(cost := world.cost(plan))]
            if kept:
                assert found[kind].cost.latency_ms == pytest.approx(min(cost.latency_ms for cost in kept))


def test_on_a_slow_uplink_few_bits_are_sent_if_what_they_lose_is_allowed(make_world):
    sent = {}
    for accuracy in (0.1, 1.0):
        for seed in range(6):
            world = with_few_bits(make_world(seed))
            world.network = replace(world.network, uplink=Uplink(0.01, 2.0), handling=Handling())
            requirement = Requirement(optimise="bytes_sent", accuracy=accuracy, coverage=1.0)
            option = world.planner().nearest(requirement, world.network, POWER).by_kind["split"]
            sent.setdefault(accuracy, []).append(option.plan.split.bits)
    assert (4,) in sent[0.1]
    assert sent[0.1].count((4,)) > sent[1.0].count((4,))


def test_a_split_in_bits_of_which_nothing_is_known_is_not_judged(make_world):
    world = with_few_bits(make_world(1))
    subnet = next(one for one in world.subnets if len(one.edges) == 3)
    assert world.evidence.part(np.arange(5)).received.keys() == world.evidence.received.keys()
    with pytest.raises(UsageError, match="no answers of a split in"):
        world.cost(Plan(subnet, split=Split(1, (2,), subnet.edges[1:], TAILS)))


def test_a_split_costs_its_handling_here_and_there(make_world):
    world = make_world(2)
    subnet = world.subnets[0]
    position = world.supernet.ends(subnet.edges[0])[1].index
    plan = Plan(subnet, split=Split(position, (8,), subnet.edges[1:], TAILS))
    with_handling = world.cost(plan)
    world.network = replace(world.network, handling=Handling())
    values = sum(spec.size for spec in world.supernet.cut_points[position].tensors)
    added_ms = values * 3e-3 + 0.7 + 1e-4 * with_handling.bytes_sent
    assert with_handling.latency_ms == pytest.approx(world.cost(plan).latency_ms + added_ms)


def test_any_model_of_a_server_may_answer_everything(make_world):
    world = make_world(1)
    choice = world.planner(tail_server=None).best(Requirement(latency_ms=1000.0, coverage=1.0), world.network, POWER)
    remote = choice.by_kind["remote"]
    assert remote.plan.split == Split(0, (), (), SERVER)
    world.supernet.check_plan(remote.plan)
    assert remote.cost.accuracy == world.evidence.right(world.evidence.servers[SERVER]).mean()
    assert remote.cost.latency_ms == pytest.approx(world.network.uplink.transfer_ms(500) + 1.0)
    assert remote.cost.energy_mj == pytest.approx(3.0 * world.network.uplink.transfer_ms(500) + 0.5)
    assert remote.cost.bytes_sent == 500


def test_every_kind_of_plan_may_abstain(make_world):
    world = make_world(1)
    choice = world.planner().best(Requirement(latency_ms=1000.0), world.network, POWER)
    behind = {"abstain", "exits + abstain", "split + abstain", "exits + split + abstain", "remote + abstain"}
    assert behind <= set(choice.by_kind)
    for kind in behind:
        assert choice.by_kind[kind].cost == world.cost(choice.by_kind[kind].plan)
    # more accurate than the server's model answering all
    assert choice.by_kind["remote + abstain"].cost.accuracy > choice.by_kind["remote"].cost.accuracy


def test_abstaining_behind_a_split_costs_what_expected_cost_says(make_world):
    world = make_world(1)
    world.costs = msgspec.structs.replace(world.costs, **CALL_TIMES)
    requirement = Requirement(accuracy=0.9, latency_ms=1000.0, optimise="bytes_sent")
    option = world.planner().best(requirement, world.network, POWER).by_kind["split + abstain"]
    assert option.cost == world.cost(option.plan)
    assert 0 < option.cost.coverage < 1


def test_a_requirement_that_no_plan_keeps_names_the_nearest_and_what_it_misses(make_world):
    world = make_world(1)
    with pytest.raises(InfeasibleBudgetError, match=r"nearest .* has latency_ms"):
        world.planner().best(Requirement(latency_ms=1e-6), world.network)


def test_only_right_answers_leave_nothing_to_decide(make_world):
    world = make_world(1)
    subnet = world.subnets[0]
    perfect = np.eye(CLASSES, dtype=np.float32)[world.evidence.labels] * 9
    planner = Planner(world.supernet, Evidence(world.evidence.labels, {subnet: perfect}), world.costs, [subnet])
    choice = planner.best(Requirement(accuracy=0.9, optimise="latency_ms"))
    assert (choice.plan.subnet, choice.plan.hard) == (subnet, AnswerLocally())


def test_the_nearest_plan_is_there_with_what_it_misses(make_world):
    world = make_world(1)
    requirement = Requirement(latency_ms=1e-6, accuracy=0.5)
    nearest = world.planner().nearest(requirement, world.network, POWER)
    assert set(nearest.misses) == {"latency_ms"}
    assert nearest.misses["latency_ms"] == nearest.cost.latency_ms
    assert all(requirement.excess(nearest.cost) <= requirement.excess(one.cost) for one in nearest.by_kind.values())


def test_where_all_samples_need_an_answer_none_abstains(make_world):
    world = make_world(2)
    choice = world.planner().best(Requirement(accuracy=0.4, coverage=1.0, optimise="latency_ms"), world.network)
    assert not isinstance(choice.plan.hard, Abstain)
    assert choice.cost.coverage == 1.0


def test_a_requirement_that_no_sample_needs_an_answer_is_refused():
    with pytest.raises(BudgetError, match="coverage is 0"):
        Requirement(coverage=0.0)


def test_samples_of_one_class_can_be_planned_with(make_world):
    world = make_world(1)
    world.evidence = replace(world.evidence, labels=np.zeros(COUNT, dtype=np.int64))
    exits = {subnet: [ExitChoice("x1", 2.0)] for subnet in world.exit_sets}
    choice = world.planner(exits=exits).best(Requirement(latency_ms=1000.0), world.network, POWER)
    assert choice.cost == world.cost(choice.plan)
    assert choice.cost.accuracy == max(option.cost.accuracy for option in choice.by_kind.values())


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_evidence_of_no_numbers_is_refused(make_world, spoiled):
    world = make_world(1)
    subnet = world.subnets[0]
    logits = world.evidence.ends[subnet].copy()
    logits[3, 1] = spoiled
    world.evidence = replace(world.evidence, ends={**world.evidence.ends, subnet: logits})
    with pytest.raises(InputError, match="not finite"):
        world.planner()


def test_a_planner_without_subnets_is_refused(make_world):
    world = make_world(1)
    with pytest.raises(UsageError, match="no subnets"):
        Planner(world.supernet, world.evidence, world.costs, [])


def test_of_several_servers_the_plan_asks_the_one_that_is_best_for_it(make_world):
    world, knows_all, knows_some = make_world(1), RemoteRef("general"), RemoteRef("specialist")
    labels = world.evidence.labels
    certain = 9.0 * np.eye(CLASSES, dtype=np.float32)
    servers = {knows_all: certain[labels], knows_some: certain[np.where(labels == 2, 0, labels)]}
    world.evidence = replace(world.evidence, servers=servers)
    network = replace(world.network, answer_ms={knows_all: 1.0, knows_some: 1.0})
    goal = Requirement(optimise="accuracy", coverage=1.0, share_asked=0.3)
    both = world.planner(servers=[knows_some, knows_all], exit_sets={}, kinds=["ask"]).nearest(goal, network)
    alone = world.planner(servers=[knows_some], exit_sets={}, kinds=["ask"]).nearest(goal, network)
    asking, alone = both.by_kind["ask"], alone.by_kind["ask"]
    assert asking.plan.hard.server == knows_all
    assert asking.cost.accuracy > alone.cost.accuracy
    dear = replace(network, answer_ms={knows_all: 1000.0, knows_some: 1.0})
    cheap = Requirement(optimise="latency_ms", coverage=1.0, accuracy=alone.cost.accuracy, share_asked=0.3)
    found = world.planner(servers=[knows_some, knows_all], exit_sets={}, kinds=["ask"]).nearest(cheap, dear)
    assert knows_all not in (getattr(found.plan.hard, "server", None), found.plan.split and found.plan.split.server)


def test_a_server_that_is_wrong_wherever_the_device_is_is_never_asked_and_named(make_world):
    world, useless = make_world(2), RemoteRef("useless")
    wrong = 9.0 * np.eye(CLASSES, dtype=np.float32)[(world.evidence.labels + 1) % CLASSES]
    world.evidence = replace(world.evidence, servers={useless: wrong})
    planner = world.planner(servers=[useless], exit_sets={}, kinds=["ask"])
    assert planner.useless == (useless,)
    goal = Requirement(optimise="accuracy", coverage=1.0)
    assert "ask" not in planner.nearest(goal, replace(world.network, answer_ms={useless: 1.0})).by_kind
    assert world.planner().useless == ()
