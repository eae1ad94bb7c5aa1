from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import Activations, pack, unpack
from device_sdk.offload.remote_calls import RemoteReply
from device_sdk.policies.scores import score_of
from device_sdk.policies.split_measuring import SplitScore, as_received, call_handling, codec_handling
from device_sdk.policies.splitting.handling import Handling
from device_sdk.policies.splitting.path_splits import split_costs
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Edge


@pytest.fixture
def costs(bundle, slow_profile):
    model = slow_profile.cost_model()
    server = model.slowed(1e-4)
    supernet = bundle.supernet
    return split_costs(supernet, supernet.original, device=model, server=server, uplink=Uplink(3.0), widths=(8, 2))


class AnsweringClient:
    """Takes the calls of tails; ``failing`` answers none."""

    def __init__(self, *, failing=False):
        self.failing, self.calls = failing, []

    def run(self, activations, *, bits=None):
        self.calls.append((activations.position, bits))
        return RemoteReply(None if self.failing else np.zeros((1, 3), np.float32), "" if not self.failing else "gone")


def test_what_is_received_is_what_a_packet_carries(bundle):
    supernet, position = bundle.supernet, 2
    random = np.random.default_rng(0)
    tensors = tuple(
        random.normal(size=(3, *spec.shape)).astype(np.float32) for spec in supernet.cut_points[position].tensors
    )
    tail = tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= position)
    for bits in (8, 4, 2):
        packet = pack(Activations(bundle.digest, position, tail, tensors), bits=(bits,) * len(tensors))
        received = unpack(packet, supernet=supernet, bundle=bundle.digest).tensors
        for tensor, expected in zip(tensors, received, strict=True):
            np.testing.assert_array_equal(as_received(tensor, bits), expected)


@pytest.fixture
def judge(bundle, runtime, tiny_bundle):
    """Builds a judge of the tiny bundle's original path."""
    inputs = SampleChecker(bundle.manifest).prepare(tiny_bundle.images)

    def build(targets):
        score = score_of(bundle.manifest.task)
        return SplitScore(Workspace(bundle, runtime), bundle.supernet.original, inputs, targets, score)

    return build


def test_a_split_in_eight_bits_loses_nothing_and_the_device_alone_never(judge, tiny_bundle, costs):
    found = judge(tiny_bundle.labels)
    assert found.whole == 1.0
    assert found.drop(costs[-1]) == 0.0
    assert all(found.drop(cost) == 0.0 for cost in costs if cost.bits and set(cost.bits) == {8})
    ruined = replace(costs[0], bits=(1,) * len(costs[0].bits))
    assert 0.0 <= found.drop(ruined) <= 1.0


def test_other_renditions_are_judged_on_the_device_too(judge, bundle, tiny_bundle, costs):
    found = judge(1 - tiny_bundle.labels % 2)
    edges = tuple(Edge("o1", "int8") if edge.block == "o1" else edge for edge in bundle.supernet.original.edges)
    coarse = found.drop(replace(costs[-1], head=edges))
    path = Workspace(bundle, OnnxRuntime(threads=1)).load_stretch(edges, batch=60)
    inputs = SampleChecker(bundle.manifest).prepare(tiny_bundle.images)
    right = path.run([inputs])[-1].argmax(axis=1) == 1 - tiny_bundle.labels % 2
    assert coarse == pytest.approx(found.whole - right.mean())


def test_without_targets_the_subnet_s_own_answers_stand_in(judge, tiny_bundle, costs):
    found, coarse = judge(None), replace(costs[0], bits=(1,))
    assert found.whole == 1.0
    assert found.drop(coarse) == judge(tiny_bundle.labels).drop(coarse)


def test_fewer_bits_have_more_error_at_every_cut_point(judge, bundle):
    found = judge(None)
    for position in range(bundle.supernet.output_index):
        errors = [found.sent_error(position, bits) for bits in range(1, 9)]
        assert errors == sorted(errors, reverse=True)
        assert 0 < errors[-1] < 1e-3


def test_calls_are_made_at_the_two_inner_cut_points_with_most_and_fewest_bytes(bundle, costs):
    client = AnsweringClient()
    found = call_handling(client, bundle.supernet, bundle.digest, costs, Handling())
    inner = sorted((cost for cost in costs if cost.tail and cost.position), key=lambda cost: cost.bytes_sent)
    assert {position for position, _ in client.calls} == {inner[0].position, inner[-1].position}
    assert found.call_ms >= 0


def test_a_server_that_does_not_answer_leaves_the_codec(bundle, costs):
    codec = codec_handling(rounds=3)
    client = AnsweringClient(failing=True)
    assert call_handling(client, bundle.supernet, bundle.digest, costs, codec) == codec
    assert len(client.calls) == 1
    assert codec.packing_ms_per_value > 0
    assert codec.unpacking_ms_per_value > 0
