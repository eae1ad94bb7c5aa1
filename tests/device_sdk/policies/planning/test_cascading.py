from __future__ import annotations

import msgspec
import numpy as np
import pytest

from device_sdk.policies.costs.evidence import Evidence
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.deciding.promises import most_shares
from device_sdk.policies.planning.planner import Planner
from device_sdk.supernet.cost import CostModel, EdgeCost, Power
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import Cascade, MaxConfidence, Plan, Subnet

COUNT, CLASSES = 300, 4


class World:
    """Subnets whose accuracy grows with their latency, and whose confidence tells easy samples from hard ones."""

    def __init__(self, elastic_supernet, *, easy_share: float = 0.7) -> None:
        random = np.random.default_rng(1)
        self.supernet = elastic_supernet(4)
        self.costs = CostModel(
            {edge: EdgeCost(1.0 + 3.0 * (edge.block[0] == "o"), 1.0, 100, 10) for edge in self.supernet.edges},
            decision_ms={"max_confidence": 0.01},
            exit_overhead_ms=0.1,
        )
        found = sorted(enumerate_subnets(self.supernet, limit=50), key=self.costs.latency_ms)
        self.subnets = [found[0], found[len(found) // 2], self.supernet.original]
        labels = random.integers(0, CLASSES, COUNT)
        easy = random.random(COUNT) < easy_share
        ends = {}
        for subnet, of_hard in zip(self.subnets, (0.4, 0.6, 0.95), strict=True):
            right = easy | (random.random(COUNT) < of_hard)
            answers = np.where(right, labels, (labels + 1) % CLASSES)
            ends[subnet] = (np.eye(CLASSES)[answers] * np.where(easy, 6.0, 1.0)[:, None]).astype(np.float32)
        self.evidence = Evidence(labels, ends=ends)

    def planner(self, *kinds: str) -> Planner:
        return Planner(self.supernet, self.evidence, self.costs, self.subnets, kinds=kinds)

    def cost(self, plan: Plan, power: Power | None = None):
        return expected_cost(self.supernet, plan, self.evidence, self.costs, None, power)

    def accuracy(self, subnet: Subnet) -> float:
        return float(self.evidence.right(self.evidence.ends[subnet]).mean())


@pytest.fixture
def world(elastic_supernet):
    return World(elastic_supernet)


def test_a_cascade_is_nearly_as_accurate_as_the_full_model_in_a_fraction_of_its_time(world):
    full_ms = world.costs.latency_ms(world.supernet.original)
    required = Requirement(latency_ms=0.75 * full_ms, coverage=1.0)
    alone = world.planner("subnets").best(required)
    cascade = world.planner("subnets", "cascade").best(required)
    assert cascade.kind == "cascade"
    assert cascade.plan.second == world.supernet.original
    assert cascade.cost.accuracy > (alone.cost.accuracy or 0) + 0.05
    assert cascade.cost.latency_ms <= required.latency_ms
    assert cascade.cost.share_asked == 0
    assert cascade.cost.coverage == 1.0


def test_it_is_proposed_only_where_it_is_considered(world):
    required = Requirement(latency_ms=1e6, coverage=1.0)
    assert "cascade" not in world.planner("subnets").best(required).by_kind
    assert "cascade" in world.planner("subnets", "cascade").best(required).by_kind


def test_what_it_costs_is_counted_sample_by_sample(world):
    quick, _, full = world.subnets
    decider = MaxConfidence(0.9)
    hard = ease(decider, world.evidence.ends[quick]) < decider.limit
    power = Power(active_w=2.0, radio_w=9.0, waiting_w=9.0)
    cost = world.cost(Plan(quick, hard=Cascade(decider, full)), power)
    first_ms, second_ms = map(world.costs.latency_ms, (quick, full))
    right = np.where(hard, *(world.evidence.right(world.evidence.ends[one]) for one in (full, quick)))
    assert cost.accuracy == right.mean()
    assert cost.share_second == hard.mean()
    assert cost.latency_ms == pytest.approx(first_ms + 0.01 + hard.mean() * second_ms)
    assert cost.p95_latency_ms == pytest.approx(first_ms + 0.01 + second_ms)
    assert cost.energy_mj == pytest.approx(2.0 * cost.latency_ms)
    assert cost.bytes_sent == 0
    assert cost.peak_bytes > max(world.costs.peak_bytes(one) for one in (quick, full))


@pytest.mark.parametrize("name", ["latency_ms", "accuracy", "p95_latency_ms", "peak_bytes", "share_second"])
def test_all_thresholds_at_once_cost_what_each_costs_alone(world, name):
    planner = world.planner("subnets", "cascade")
    for target in (0.80, 0.85, 0.9, 0.93):
        choice = planner.nearest(Requirement(accuracy=target, coverage=1.0, optimise="latency_ms"))
        option = choice.by_kind["cascade"]
        assert getattr(option.cost, name) == pytest.approx(getattr(world.cost(option.plan), name))


def test_a_limit_of_the_slow_calls_rules_it_out(world):
    full_ms = world.costs.latency_ms(world.supernet.original)
    required = Requirement(latency_ms=0.75 * full_ms, p95_latency_ms=0.9 * full_ms, coverage=1.0)
    choice = world.planner("subnets", "cascade").best(required)
    assert choice.kind == "subnet" or (choice.cost.p95_latency_ms or 0) <= required.p95_latency_ms


def test_memory_counts_both_paths(world):
    quick, _, full = world.subnets
    both = world.cost(Plan(quick, hard=Cascade(MaxConfidence(0.9), full))).peak_bytes
    assert both > world.costs.peak_bytes(quick) + world.costs.peak_bytes(full) - 100
    choice = world.planner("subnets", "cascade").best(Requirement(peak_bytes=both - 1, coverage=1.0))
    assert choice.cost.peak_bytes < both
    assert world.cost(choice.plan).peak_bytes == choice.cost.peak_bytes


def test_preparing_the_image_again_for_another_size_counts(world):
    quick, _, full = world.subnets
    plan = Plan(quick, hard=Cascade(MaxConfidence(0.9), full))
    cost = world.cost(plan)
    resized = quick.at((8, 8))
    world.evidence.ends[resized] = world.evidence.ends[quick]
    world.evidence.prepare_ms[()] = 2.0
    costs = {**world.costs.edge_costs, **{edge: world.costs.edge_costs[edge.at(())] for edge in resized.edges}}
    world.costs = msgspec.structs.replace(world.costs, edge_costs=costs)
    again = world.cost(msgspec.structs.replace(plan, subnet=resized))
    assert again.latency_ms == pytest.approx(cost.latency_ms + 2.0 * cost.share_second)


def test_its_mean_latency_keeps_a_limit_at_the_bound_of_the_share_that_goes_on(world):
    full_ms = world.costs.latency_ms(world.supernet.original)
    required = Requirement(latency_ms=0.3 * full_ms, coverage=1.0)
    plan = world.planner("subnets", "cascade").best(required)
    share = plan.cost.share_second
    at_most = most_shares(COUNT, 0.9)[round(share * COUNT)]
    second_ms = world.costs.latency_ms(plan.plan.second)
    assert plan.cost.latency_ms + (at_most - share) * second_ms <= required.latency_ms
    surer = Planner(world.supernet, world.evidence, world.costs, world.subnets, kinds=["cascade"], certainty=0.999)
    assert surer.best(required).cost.share_second < share


def test_a_gain_that_may_be_luck_is_not_taken(world):
    quick, _, full = world.subnets
    labels, answers = world.evidence.labels, world.evidence.ends[quick]
    wrong = np.flatnonzero(answers.argmax(axis=1) != labels)[:1]
    lucky = answers.copy()
    lucky[wrong] = np.eye(CLASSES)[labels[wrong]]  # one sample more than the first path
    evidence = Evidence(labels, ends={quick: answers, full: lucky})
    planner = Planner(world.supernet, evidence, world.costs, [quick, full], kinds=["cascade"])
    choice = planner.best(Requirement(latency_ms=0.75 * world.costs.latency_ms(full), coverage=1.0))
    assert choice.by_kind["cascade"].cost.accuracy > choice.cost.accuracy
    assert choice.plan == Plan(quick)
