from __future__ import annotations

import numpy as np
import pytest

from device_sdk.files.atomic import decode_json
from device_sdk.offload.open_inference import InferRequest, NamedTensor, decode_response, encode_request
from device_sdk.offload.packing import Activations, pack
from device_sdk.profiling.profile import Profile
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import Edge


@pytest.mark.embedded
def test_the_server_tells_what_every_block_costs_here_and_measures_it_once(server, tiny_bundle):
    reply = server.ask("/v1/bundles/tiny/profile")
    assert reply.status == 200
    profile = decode_json(reply.body, Profile)
    assert profile.bundle == tiny_bundle.digest
    assert {one.edge for one in profile.edges} == set(tiny_bundle.supernet.edges)
    assert profile.original_ms > 0
    assert server.ask("/v1/bundles/tiny/profile").body == reply.body


def test_the_profile_of_a_bundle_that_is_not_there_is_404(server):
    assert server.ask("/v1/bundles/nonsense/profile").status == 404


@pytest.mark.parametrize("size", [0, 1, 64_000])
def test_a_probe_counts_its_bytes(server, size):
    reply = server.ask("/v1/probe", method="POST", body=bytes(size))
    assert (reply.status, reply.json()) == (200, {"bytes": size})


def test_a_probe_that_is_too_large_is_413(server):
    assert server.ask("/v1/probe", method="POST", body=bytes(1_000_001)).status == 413


def infer(server, packet):
    body, headers = encode_request(InferRequest((NamedTensor("activations", packet),)))
    return server.ask("/v2/models/tiny%3Atail/infer", method="POST", body=body, headers=headers)


def test_a_tail_runs_on_the_activations_that_came(server, tiny_bundle):
    tail = (Edge("m2-4"), Edge("o4"))
    tensor = np.random.default_rng(0).random((3, *tiny_bundle.supernet.cut_points[2].tensors[0].shape), np.float32)
    packet = np.frombuffer(pack(Activations(tiny_bundle.digest, 2, tail, (tensor,))), np.uint8)[np.newaxis]
    reply = infer(server, packet)
    assert reply.status == 200
    [logits] = decode_response(reply.body, header_length=None).outputs
    expected = OnnxRuntime(threads=1).load(tiny_bundle.stretch(tail)).run([tensor])[-1]
    np.testing.assert_allclose(logits.data, expected, atol=0.05)


def test_activations_that_do_not_fit_are_400_with_the_reason(server, tiny_bundle):
    tail, tensor = (Edge("o4"),), np.zeros((1, *tiny_bundle.supernet.cut_points[4].tensors[0].shape), np.float32)
    good = pack(Activations(tiny_bundle.digest, 4, tail, (tensor,)))
    stale = pack(Activations("0" * 64, 4, tail, (tensor,)))
    for data, said in (
        (stale, "another version of the bundle"),
        (good[:-1], "bytes"),
        (good + b"\0", "bytes"),
        (good[:4] + b"\x07" + good[5:], "layout 7"),
        (b"", "ends after"),
    ):
        reply = infer(server, np.frombuffer(data, np.uint8)[np.newaxis])
        assert reply.status == 400
        assert said in reply.json()["error"]
