from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import numpy as np
import pytest

from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import Activations, pack, unpack
from device_sdk.offload.remote_calls import RemoteReply
from device_sdk.policies.deciding.promises import caution_of, most_drop
from device_sdk.policies.measured_splits.measuring import (
    JpegInputs,
    SplitScore,
    as_received,
    call_handling,
    codec_handling,
)
from device_sdk.policies.splitting.path_splits import Handling, split_costs
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Edge
from device_sdk.tasks import answer_task


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


def received(jpegs):
    return np.concatenate(list(jpegs.received(16)))


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

    def build(targets, **choices):
        score = answer_task(bundle.manifest.task)
        return SplitScore(Workspace(bundle, runtime), bundle.supernet.original, inputs, targets, score, **choices)

    return build


def test_a_split_in_eight_bits_loses_nothing_and_the_device_alone_never(judge, tiny_bundle, costs):
    found = judge(tiny_bundle.labels)
    assert found.whole == 1.0
    assert found.drop(costs[-1]) == 0.0
    assert all(found.drop(cost) == 0.0 for cost in costs if cost.bits and set(cost.bits) == {8})
    ruined = replace(costs[0], bits=(1,) * len(costs[0].bits))
    assert 0.0 <= found.drop(ruined) <= 1.0


def test_the_caution_is_half_the_standard_error_of_the_drop(judge, tiny_bundle, costs):
    found = judge(tiny_bundle.labels)
    coarse = replace(costs[0], bits=(1,) * len(costs[0].bits))
    assert found.caution(coarse) == 0.0, "not measured yet"
    drop = found.drop(coarse)  # of 1.0: every difference is a loss
    count = len(tiny_bundle.labels)
    assert found.caution(coarse) == pytest.approx(0.5 * np.sqrt(drop * count) / count)
    fine = replace(costs[0], bits=(8,) * len(costs[0].bits))
    found.drop(fine)
    assert found.caution(fine) == 0.0


def test_with_a_certainty_the_caution_leads_to_the_bound_on_new_samples(judge, tiny_bundle, costs):
    plain, careful = judge(tiny_bundle.labels), judge(tiny_bundle.labels, certainty=0.9)
    coarse = replace(costs[0], bits=(1,) * len(costs[0].bits))
    drop, count = plain.drop(coarse), len(tiny_bundle.labels)
    assert careful.drop(coarse) == drop
    bound = most_drop(round(drop * count), 0, count, 1 - 0.1 / 2)  # of 1.0: every difference is a loss
    assert drop + careful.caution(coarse) == pytest.approx(bound)
    fine = replace(costs[0], bits=(8,) * len(costs[0].bits))
    assert careful.drop(fine) == 0.0
    assert careful.caution(fine) == pytest.approx(most_drop(0, 0, count, 1 - 0.1 / 6))  # the second way


@pytest.mark.parametrize("turn", [1, 5])
@pytest.mark.parametrize(("samples", "lost", "won"), [(30, 0.03, 0.0), (100, 0.035, 0), (100, 0.08, 0.04)])
def test_the_bound_is_exceeded_as_rarely_as_stated(samples, lost, won, turn):
    random = np.random.default_rng(1)
    drawn = random.choice([1.0, -1.0, 0.0], size=(400, samples), p=[lost, won, 1 - lost - won])
    exceeded = np.mean([one.mean() + caution_of(one, 0.9, turn=turn) < lost - won for one in drawn])
    assert exceeded <= 0.1 / (turn * (turn + 1)) + 0.01


def test_a_way_is_measured_once_whatever_its_latency(judge, tiny_bundle, costs, monkeypatch):
    found = judge(tiny_bundle.labels)
    coarse = replace(costs[0], bits=(1,) * len(costs[0].bits))
    drop, caution = found.drop(coarse), found.caution(coarse)
    monkeypatch.setattr(found, "_answers", None)
    slower = replace(coarse, transfer_ms=1e3)
    assert (found.drop(slower), found.caution(slower)) == (drop, caution)


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
        errors = [found.coding(position, bits, False).error for bits in range(1, 9)]
        assert errors == sorted(errors, reverse=True)
        assert 0 < errors[-1] < 1e-3


def test_what_a_jpeg_loses_is_judged_on_the_decoded_pixels(judge, bundle, runtime, tiny_bundle, costs):
    checker = SampleChecker(bundle.manifest)
    pixels = checker.pixels(tiny_bundle.images)
    shape = bundle.manifest.cut_points[0].tensors[0].shape
    jpegs = {
        quality: JpegInputs(pixels, bundle.manifest.preprocessing, input_shape=shape, quality=quality)
        for quality in (1, 90)
    }
    fine, coarse = jpegs[90].coding(), jpegs[1].coding()
    assert coarse.size_bytes < fine.size_bytes
    assert fine.encoding_ms > 0
    assert fine.decoding_ms > 0
    inputs = checker.prepare(tiny_bundle.images)
    assert received(jpegs[90]).shape == inputs.shape
    assert np.abs(received(jpegs[90]) - inputs).mean() < np.abs(received(jpegs[1]) - inputs).mean()
    way = replace(costs[0], sends="jpeg", bits=(), tail=bundle.supernet.original.edges)
    found = judge(tiny_bundle.labels, jpegs=jpegs[90])
    share = (_logits(bundle, runtime, received(jpegs[90])).argmax(axis=1) == tiny_bundle.labels).mean()
    assert found.drop(way) == pytest.approx(found.whole - share)
    assert jpegs[90].coding().pixels.size_bytes == inputs[0].size
    np.testing.assert_array_equal(np.concatenate(list(jpegs[1].received(16, as_pixels=True))), inputs)
    pixels_sent = replace(way, sends="images")
    assert (found.drop(pixels_sent), found.caution(pixels_sent)) == (0.0, 0.0), "the server prepares them alike"


def _logits(bundle, runtime, inputs):
    with contextlib.closing(Workspace(bundle, runtime).load_stretch(bundle.supernet.original.edges, batch=50)) as whole:
        return np.concatenate([whole.run([inputs[at : at + 50]])[-1] for at in range(0, len(inputs), 50)])


def test_calls_are_made_at_inner_cut_points_with_most_fewest_and_middle_bytes(bundle, costs):
    client = AnsweringClient()
    found = call_handling(client, bundle.supernet, bundle.digest, costs, Handling())
    inner = sorted((cost for cost in costs if cost.tail and cost.position), key=lambda cost: cost.bytes_sent)
    called = list(dict.fromkeys(client.calls))
    assert called == [(inner[at].position, inner[at].bits) for at in (0, len(inner) // 2, -1)]
    assert client.calls[0] == client.calls[-1]  # there and back
    assert found.call_ms >= 0


class SlowHeads:
    """A workspace whose heads take 20 ms."""

    def __init__(self, workspace):
        self.workspace, self.loaded, self.closed = workspace, [], 0

    def load_stretch(self, edges, *, batch):
        stretch = self.workspace.load_stretch(edges, batch=batch)
        self.loaded.append(tuple(edges))
        outer = self

        class Slow:
            def run(self, inputs):
                time.sleep(0.02)
                return stretch.run(inputs)

            def close(self):
                outer.closed += 1
                stretch.close()

        return Slow()


def test_a_head_that_is_slower_than_its_profile_counts_as_handling(bundle, runtime, costs):
    heads, instant = (
        SlowHeads(Workspace(bundle, runtime)),
        [replace(cost, device_ms=1.0, transfer_ms=0.0, server_ms=0.0) for cost in costs],
    )
    subnet = bundle.supernet.original
    found = call_handling(
        AnsweringClient(), bundle.supernet, bundle.digest, instant, Handling(), heads=heads, subnet=subnet
    )
    assert (
        np.mean([found.beside_codec_ms(cost.bytes_sent) for cost in instant if cost.tail]) > 15.0
    )  # 19 on a quiet one
    walk = list(bundle.supernet.walk(subnet))
    for head in heads.loaded:
        assert head == tuple(edge for edge, block in walk if block.end <= len(head))
    assert heads.closed == len(heads.loaded)


def test_a_server_that_does_not_answer_leaves_the_codec(bundle, costs):
    codec = codec_handling(rounds=3)
    client = AnsweringClient(failing=True)
    assert call_handling(client, bundle.supernet, bundle.digest, costs, codec) == codec
    assert len(client.calls) == 1
    assert codec.packing_ms_per_value > 0
    assert codec.unpacking_ms_per_value > 0


class SlowClient(AnsweringClient):
    """A server that takes longer than a turn for a call."""

    def run(self, activations, *, bits=None):
        time.sleep(0.03)
        return super().run(activations, bits=bits)


def test_slow_calls_are_few(bundle, costs):
    client = SlowClient()
    quick = [replace(cost, transfer_ms=1.0) for cost in costs]
    call_handling(client, bundle.supernet, bundle.digest, quick, Handling(), turn_ms=20.0)
    assert len(client.calls) == 6 * 3  # in six turns the call that opens the connection and two more


def test_cut_points_that_take_seconds_to_send_are_left_out(bundle, costs):
    client = AnsweringClient()
    inner = sorted((cost for cost in costs if cost.tail and cost.position), key=lambda cost: cost.bytes_sent)
    limit_ms = inner[len(inner) // 2].transfer_ms
    call_handling(client, bundle.supernet, bundle.digest, costs, Handling(), turn_ms=2 * limit_ms)
    sent = {(cost.position, cost.bits): cost.transfer_ms for cost in inner}
    assert max(sent[call] for call in client.calls) <= limit_ms
    alone = AnsweringClient()
    call_handling(alone, bundle.supernet, bundle.digest, costs, Handling(), turn_ms=1e-6)
    assert set(alone.calls) == {(inner[0].position, inner[0].bits)}


@pytest.mark.parametrize("turn", [1, 5])
def test_the_bound_of_a_score_between_0_and_1_is_exceeded_as_rarely_as_stated(turn):
    drawn = np.random.default_rng(2).normal(0.01, 0.05, size=(2000, 60))
    exceeded = np.mean([one.mean() + caution_of(one, 0.9, turn=turn) < 0.01 for one in drawn])
    assert exceeded <= 0.1 / (turn * (turn + 1)) + 0.02
    assert max(caution_of(one, 0.9, turn=1) for one in drawn) < 0.02, "far below that of as many lost samples"
