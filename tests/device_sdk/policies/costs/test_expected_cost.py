from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace

from device_sdk.errors import UsageError
from device_sdk.offload.remote_model import LogarithmicPool
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.supernet.blocks import Exit, Golden, Rendition
from device_sdk.supernet.cost import CostModel, EdgeCost, Power, Uplink
from device_sdk.supernet.plan import (
    UNREACHABLE_CONFIDENCE,
    Abstain,
    Ask,
    Edge,
    ExitChoice,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
    Subnet,
)
from device_sdk.supernet.supernet import Supernet

LABELS = np.array([0, 1, 0, 1])
SURE, UNSURE = 5.0, 0.5
SERVER = RemoteRef("big")
POWER = Power(active_w=2.0)


def logits(answers, strengths):
    found = np.zeros((4, 2), dtype=np.float32)
    found[np.arange(4), answers] = strengths
    return found


@pytest.fixture
def supernet(elastic_supernet):
    plain = elastic_supernet(3)
    rendition = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0))
    exits = [Exit("x1", 1, "pooled", 1, 1, (rendition,)), Exit("x2", 2, "pooled", 1, 1, (rendition,))]
    return Supernet(plain.cut_points, plain.blocks, exits)


@pytest.fixture
def costs(supernet):
    edges = {edge: EdgeCost(10.0, 11.0, 100, 10) for edge in supernet.edges}
    exits = {(exit_.id, "fp32", ()): EdgeCost(1.0, 1.1, 7, 1) for exit_ in supernet.exits}
    return CostModel(edges, exit_costs=exits)


@pytest.fixture
def subnet(supernet):
    return supernet.original


@pytest.fixture
def evidence(subnet):
    return Evidence(
        LABELS,
        ends={subnet: logits([0, 1, 0, 0], [SURE, SURE, UNSURE, UNSURE])},  # the last one is wrong
        exits={
            (subnet.edges[:1], "x1", "fp32"): logits([0, 0, 0, 0], [SURE, UNSURE, UNSURE, UNSURE]),
            (subnet.edges[:2], "x2", "fp32"): logits([0, 1, 1, 1], [SURE, SURE, UNSURE, UNSURE]),
        },
        servers={SERVER: logits([0, 1, 1, 1], [SURE] * 4)},
    )


def test_a_subnet_alone_costs_what_its_path_costs(supernet, subnet, evidence, costs):
    cost = expected_cost(supernet, Plan(subnet), evidence, costs)
    assert (cost.accuracy, cost.latency_ms, cost.p95_latency_ms) == (0.75, 30.0, 30.0)
    assert (cost.bytes_sent, cost.peak_bytes, cost.coverage) == (0.0, 310, 1.0)


def test_samples_pay_for_the_branches_that_were_tried_before_their_answer(supernet, subnet, evidence, costs):
    plan = Plan(subnet, exits=(ExitChoice("x1", 0.9), ExitChoice("x2", 0.9)))
    cost = expected_cost(supernet, plan, evidence, costs)
    assert cost.share_early == 0.5
    assert cost.latency_ms == pytest.approx((11 + 22 + 32 + 32) / 4)
    assert cost.accuracy == 0.75
    assert cost.peak_bytes == 310 + 14


def test_only_samples_that_go_on_behind_an_exit_pay_for_a_further_session(supernet, subnet, evidence, costs):
    plan = Plan(subnet, exits=(ExitChoice("x1", 0.9), ExitChoice("x2", 0.9)))
    cost = expected_cost(supernet, plan, evidence, replace(costs, exit_overhead_ms=0.5))
    assert cost.latency_ms == pytest.approx((11 + 22.5 + 33 + 33) / 4)  # at x1, at x2, at the end


def test_a_call_and_a_decision_count_once_whatever_the_plan(supernet, subnet, evidence, costs):
    """0.5 ms for each call, 0.25 ms for each sample that a decider looks at: those that reach the end."""
    dear = replace(costs, call_overhead_ms=0.5, decision_ms={"max_confidence": 0.25, "margin": 64.0})
    decider, exits = MaxConfidence(0.9), (ExitChoice("x1", 0.9),)  # that answers a quarter
    tails = RemoteRef("m:tail")
    network = Network(uplink=Uplink(8.0), server=costs, answer_ms={SERVER: 4.0}, input_bytes=1000)
    splits = [Split(1, (8,), subnet.edges[1:], tails), Split(0, (), (), SERVER)]
    for plan, added_ms in [
        (Plan(subnet), 0.5),
        (Plan(subnet, exits=exits), 0.5),
        *((Plan(subnet, split=split), 0.5) for split in splits),
        (Plan(subnet, exits=exits, split=splits[0]), 0.5),
        (Plan(subnet, hard=Abstain(decider)), 0.75),
        (Plan(subnet, hard=Ask(decider, SERVER)), 0.75),
        (Plan(subnet, exits=exits, hard=Ask(decider, SERVER)), 0.5 + 0.75 * 0.25),
        (Plan(subnet, split=splits[1], hard=Abstain(decider)), 0.75),
    ]:
        without, with_both = (expected_cost(supernet, plan, evidence, one, network, POWER) for one in (costs, dear))
        assert with_both.latency_ms == pytest.approx(without.latency_ms + added_ms), plan
        assert with_both.energy_mj == pytest.approx(without.energy_mj + 2.0 * added_ms), plan
        assert with_both.p95_latency_ms > without.p95_latency_ms


def test_abstaining_trades_coverage_for_accuracy(supernet, subnet, evidence, costs):
    cost = expected_cost(supernet, Plan(subnet, hard=Abstain(MaxConfidence(0.9))), evidence, costs)
    assert (cost.coverage, cost.accuracy, cost.latency_ms) == (0.5, 1.0, 30.0)


def test_asking_adds_transfer_and_server_to_the_hard_samples_alone(supernet, subnet, evidence, costs):
    plan = Plan(subnet, hard=Ask(MaxConfidence(0.9), SERVER))
    network = Network(uplink=Uplink(8.0, 5.0), answer_ms={SERVER: 4.0}, input_bytes=1000)
    cost = expected_cost(supernet, plan, evidence, costs, network)
    assert cost.share_asked == 0.5
    assert cost.latency_ms == pytest.approx(30 + 0.5 * (network.uplink.transfer_ms(1000) + 4.0))
    assert cost.bytes_sent == 500
    assert cost.accuracy == 0.75  # the server rights one and wrongs the other


def test_what_nothing_is_known_of_is_none(supernet, subnet, evidence, costs):
    plan = Plan(subnet, hard=Ask(MaxConfidence(0.9), RemoteRef("unknown")))
    cost = expected_cost(supernet, plan, evidence, costs)
    assert cost.accuracy is None
    assert cost.latency_ms is None
    assert cost.share_asked == 0.5


def test_a_split_runs_its_head_here_and_its_tail_there(supernet, subnet, evidence, costs):
    tail = subnet.edges[1:]
    plan = Plan(subnet, split=Split(1, (8,), tail, RemoteRef("m:tail")))
    server = CostModel({edge: EdgeCost(1.0, 1.0, 1, 1) for edge in supernet.edges})
    network = Network(uplink=Uplink(8.0), server=server)
    cost = expected_cost(supernet, plan, evidence, costs, network)
    assert cost.accuracy == 0.75
    assert cost.bytes_sent > 0
    assert cost.latency_ms == pytest.approx(10 + network.uplink.transfer_ms(int(cost.bytes_sent)) + 2)


def test_hard_samples_may_send_activations_to_another_tail(supernet, subnet, evidence, costs):
    merged = next(edge for edge in supernet.edges if supernet.block(edge.block).kind == "merged")
    start = supernet.block(merged.block).start
    head = subnet.edges[:start]
    tail = (merged, *subnet.edges[supernet.block(merged.block).end :])
    plan = Plan(subnet, hard=Ask(MaxConfidence(0.9), SERVER, start or "input", tail if start else ()))
    if start == 0:
        pytest.skip("the merged block begins at the input")
    more = Evidence(LABELS, {**evidence.ends, Subnet(head + tail): logits([0, 1, 0, 1], [SURE] * 4)})
    assert expected_cost(supernet, plan, more, costs).accuracy == 1.0


def test_missing_evidence_of_the_plans_own_path_is_said(supernet, subnet, costs):
    with pytest.raises(UsageError, match="the subnet"):
        expected_cost(supernet, Plan(subnet), Evidence(LABELS), costs)
    with pytest.raises(UsageError, match="exit x1"):
        expected_cost(supernet, Plan(subnet, exits=(ExitChoice("x1", 0.5),)), Evidence(LABELS), costs)
    assert Edge("o0") in subnet.edges


def test_asking_from_an_exit_spares_the_rest_of_the_path(supernet, subnet, evidence, costs):
    network = Network(uplink=Uplink(8.0, 5.0), answer_ms={SERVER: 4.0}, input_bytes=1000)
    call_ms = 5.0 + 1.0 + 4.0
    exits = (ExitChoice("x1", 0.9, ask_below=0.9), ExitChoice("x2", 0.9))
    plan = Plan(subnet, exits, hard=Ask(MaxConfidence(0.9), SERVER))
    power = Power(active_w=2.0, radio_w=3.0, waiting_w=0.5)
    early = expected_cost(supernet, plan, evidence, costs, network, power)
    assert (early.share_early, early.share_asked, early.share_asked_early) == (0.25, 0.75, 0.75)
    assert early.latency_ms == pytest.approx(11 + 0.75 * call_ms)
    assert early.p95_latency_ms == 11 + call_ms
    assert early.energy_mj == pytest.approx(11 * 2.0 + 0.75 * (6.0 * 3.0 + 4.0 * 0.5))
    assert early.bytes_sent == 750
    assert early.accuracy == 0.75  # the server is wrong about one
    late = expected_cost(
        supernet, Plan(subnet, (ExitChoice("x1", 0.9), exits[1]), hard=plan.hard), evidence, costs, network, power
    )
    assert (late.share_early, late.share_asked, late.share_asked_early) == (0.5, 0.5, 0.0)


def test_an_exit_that_only_asks_takes_its_time_and_memory(supernet, subnet, evidence, costs):
    network = Network(uplink=Uplink(8.0, 5.0), answer_ms={SERVER: 4.0}, input_bytes=1000)
    plan = Plan(
        subnet, (ExitChoice("x1", UNREACHABLE_CONFIDENCE, ask_below=0.9),), hard=Ask(MaxConfidence(0.0), SERVER)
    )
    cost = expected_cost(supernet, plan, evidence, costs, network)
    assert (cost.share_early, cost.share_asked_early) == (0.0, 0.75)
    assert cost.latency_ms == pytest.approx((31 + 3 * (11 + 10)) / 4)
    assert cost.peak_bytes == 310 + 7


def test_answers_to_what_exits_ask_are_the_servers_alone_where_those_at_the_end_are_pooled(
    supernet, subnet, evidence, costs
):
    plan = Plan(
        subnet, (ExitChoice("x1", UNREACHABLE_CONFIDENCE, ask_below=0.9),), hard=Ask(MaxConfidence(1.0), SERVER)
    )
    ends = {subnet: logits([0, 0, 1, 0], [UNSURE] * 4)}  # right for the sample that reaches the end
    all_from_the_device = dataclasses.replace(
        evidence, ends=ends, pools={SERVER: LogarithmicPool(device=1.0, server=0.0)}
    )
    assert expected_cost(supernet, plan, all_from_the_device, costs).accuracy == 0.75


def test_what_asking_from_an_exit_costs_is_unknown_without_the_network(supernet, subnet, evidence, costs):
    plan = Plan(subnet, (ExitChoice("x1", 0.9, ask_below=0.8),), hard=Ask(MaxConfidence(0.0), SERVER))
    assert expected_cost(supernet, plan, evidence, costs).latency_ms is None
    other = replace(plan, hard=Ask(MaxConfidence(0.0), RemoteRef("other")))
    assert expected_cost(supernet, other, evidence, costs).accuracy is None
