from __future__ import annotations

import pytest

from benchmarks.split.ways import BEST_HERE, BEST_SPLIT, DEVICE, JPEGS, MIXED, OURS, RAW, Known, Way, plan_of, way_of
from device_sdk.bundles.bundle import Bundle
from device_sdk.policies.measured_splits.decision import choose
from device_sdk.policies.splitting.path_splits import JpegCoding
from device_sdk.signing.signatures import new_key_pair
from device_sdk.supernet.cost import CostModel, EdgeCost, Uplink
from device_sdk.supernet.plan import Plan
from tests.device_sdk.tiny_bundle import write_tiny_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("tiny")
    key = folder / "key"
    key.write_bytes(new_key_pair()[0])
    write_tiny_bundle(folder / "tiny", key)
    return Bundle.open(folder / "tiny")


@pytest.fixture
def known(bundle):
    """Both sides take 1 ms for a block, and half of that in 8 bits; few bits lose too much."""

    def make(mbps, server_scale=1.0, jpeg_bytes=10**6):
        costs = {
            edge: EdgeCost(0.5 if edge.rendition == "int8" else 1.0, 1.0, 100, 100) for edge in bundle.supernet.edges
        }
        ours, theirs = CostModel(costs), CostModel(costs).slowed(server_scale)
        plan, name = Plan(bundle.supernet.original), f"{bundle.manifest.name}:tail"
        decision = choose(bundle, plan, ours, theirs, Uplink(mbps), model_name=name, source="a test's")
        jpeg = JpegCoding(jpeg_bytes, 0.1, 0.1)
        return Known(bundle, ours, theirs, decision, jpeg, FewBitsLose(), ("fp32", "int8"))

    return make


class FewBitsLose:
    """A judge by which fewer than 8 bits on the way lose half of the score."""

    def decision(self):
        return self

    def drop(self, cost):
        return 0.5 * any(bits < 8 for bits in cost.bits)

    def caution(self, cost):
        return 0.0

    def keeps(self, way, max_drop):
        return self.lost(way) <= max_drop

    def lost(self, way):
        return 0.5 * (0 < way.bits < 8)

    def coding(self, position, bits, per_channel):
        return None


def test_every_method_has_a_way_that_can_be_planned(known, bundle):
    methods = known(3.0).methods(5.0)
    assert set(methods) == {
        RAW,
        JPEGS,
        DEVICE["fp32"],
        DEVICE["int8"],
        "Neurosurgeon",
        "DADS, QDMP",
        "QDMP_E",
        "QDMP + uniform 4 bits",
        BEST_HERE,
        BEST_SPLIT,
        OURS,
    }
    for way in methods.values():
        split = plan_of(bundle, way).split
        assert (split is None) is (way.kind == "device")
        assert split is None or split.position == way.position


def test_ours_is_the_fastest_predicted_way_that_keeps_the_drop(known, bundle):
    alone = known(1e-3).chosen(1.0)[OURS]
    assert (alone.kind, alone.rendition) == ("device", MIXED)
    assert {edge.block for edge in alone.head if edge.rendition == "int8"} == {"o1"}  # the only one with both
    assert known(1e3, server_scale=1e-3).chosen(20.0)[OURS].kind == "server"
    assert known(1.0, server_scale=1e-3, jpeg_bytes=1).chosen(20.0)[OURS] == Way("fp32", 0, "jpeg")


@pytest.mark.parametrize("mbps", [1e-3, 1.0, 10.0, 1e3])
@pytest.mark.parametrize("factor", [1.0, 20.0])
def test_on_a_chain_the_minimum_cut_is_neurosurgeon_s_and_no_position_is_faster(known, bundle, mbps, factor):
    one = known(mbps, server_scale=0.1)
    methods = one.methods(factor)
    assert methods["DADS, QDMP"] == methods["Neurosurgeon"]
    found, uplink = {}, one.decision.uplink
    for cost in one.costs_of("fp32", factor):
        if cost.sends == "activations":
            cut = bundle.supernet.cut_points[cost.position]
            more = 3 * sum(spec.size for spec in cut.tensors) if cost.tail and cost.position else 0
            found[cost.position] = cost.latency_ms + uplink.transfer_ms(more) - uplink.transfer_ms(0)
    fastest = min(found, key=lambda position: found[position])
    assert found[methods["Neurosurgeon"].position] == pytest.approx(found[fastest], rel=0.01)


def test_a_cost_and_its_way_make_the_same_plan(known, bundle):
    one = known(3.0)
    for cost in one.costs_of("fp32", 1.0):
        way = way_of(cost)
        split = plan_of(bundle, way).split
        if not cost.tail:
            assert split is None
        elif cost.sends == "jpeg":
            assert split.is_whole
        else:
            assert (split.position, split.bits, split.tail) == (cost.position, cost.bits, cost.tail)
