"""The golden vectors of tests/contract, which every implementation of the SDK reads."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_sdk import signing
from device_sdk.composition import Stretch, compose
from device_sdk.errors import SignatureError
from device_sdk.graph import Block, CutPoint, Golden, Rendition, Supernet, TensorSpec
from device_sdk.paths import WindowSampler, architecture_count, k_cheapest, sample_uniformly, subnet_count
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.self_test import golden_inputs, sample_outputs

CONTRACT = Path(__file__).parents[1] / "contract"
VECTORS = json.loads((CONTRACT / "vectors.json").read_text())
GRAPH = VECTORS["graph"]


def float32s(bits):
    return [struct.unpack(">f", bytes.fromhex(one))[0] for one in bits]


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    written = tmp_path / "vectors.json"
    subprocess.run([sys.executable, CONTRACT / "write_vectors.py", written], check=True, timeout=60)
    assert written.read_text() == (CONTRACT / "vectors.json").read_text(), "python tests/contract/write_vectors.py"


@pytest.mark.parametrize("stream", VECTORS["random"], ids=lambda stream: f"seed {stream['seed']}")
def test_a_seed_gives_the_same_stream_everywhere(stream):
    seed = int(stream["seed"])
    words, doubles = SplitMix64(seed), SplitMix64(seed)
    assert [words.next() for _ in stream["words"]] == [int(word) for word in stream["words"]]
    assert [doubles.uniform() for _ in stream["uniform"]] == [
        struct.unpack(">d", bytes.fromhex(bits))[0] for bits in stream["uniform"]
    ]
    assert uniform_floats(seed, len(stream["uniform_floats"])).tolist() == float32s(stream["uniform_floats"])
    assert SplitMix64(seed).shuffled(range(10)) == stream["shuffled"]
    for below in stream["below"]:
        random = SplitMix64(seed)
        assert [random.below(int(below["bound"])) for _ in below["values"]] == list(map(int, below["values"]))


@pytest.fixture(scope="module")
def supernet():
    def rendition(name):
        return Rendition(name, "none", "0" * 64, 1, Golden((), 0.0))

    return Supernet(
        [CutPoint(index, (TensorSpec(f"cut_{index}", (1,)),)) for index in range(GRAPH["cut_points"])],
        [
            Block(
                one["id"],
                one["start"],
                one["end"],
                "original" if one["end"] == one["start"] + 1 else "merged",
                parameters=0,
                macs=0,
                renditions=tuple(map(rendition, one["renditions"])),
            )
            for one in GRAPH["blocks"]
        ],
    )


def test_paths_are_counted_exactly(supernet):
    assert str(architecture_count(supernet)) == GRAPH["architecture_count"]
    assert str(subnet_count(supernet)) == GRAPH["subnet_count"]
    assert int(GRAPH["counts_by_length"]["60"]) > 2**53  # more than a JSON number holds


def test_a_seed_draws_the_same_paths_everywhere(supernet):
    def weight(edge):
        return GRAPH["weights"][str(edge)]

    uniform, window = GRAPH["samples"], GRAPH["window_samples"]
    drawn = sample_uniformly(supernet, count=5, random=SplitMix64(int(uniform["seed"])))
    assert list(map(str, drawn)) == uniform["subnets"]
    sampler = WindowSampler(supernet, weight, low=window["low"], high=window["high"])
    drawn = sampler.sample(count=5, random=SplitMix64(int(window["seed"])))
    assert list(map(str, drawn)) == window["subnets"]
    cheapest = k_cheapest(supernet, weight, k=len(GRAPH["cheapest_weights"]))
    assert [total for total, _ in cheapest] == GRAPH["cheapest_weights"]


def test_golden_inputs_and_samples_are_the_same_everywhere():
    specs = tuple(
        TensorSpec(f"cut_3_{one['tensor']}", tuple(one["shape"]), one["dtype"], one["low"], one["high"])
        for one in VECTORS["golden"]
    )
    first = VECTORS["golden"][0]
    drawn = golden_inputs(CutPoint(first["cut_point"], specs), seed=int(first["seed"]), batch=first["batch"])
    for values, expected in zip(drawn, VECTORS["golden"], strict=True):
        assert values.shape == (expected["batch"], *expected["shape"])
        assert values.ravel().tolist() == float32s(expected["values"])
        assert list(sample_outputs([values])[0]) == float32s(expected["samples"])


@pytest.fixture(scope="module")
def stretch():
    vector = VECTORS["composition"]
    ends = [
        (TensorSpec(vector[end]["name"], tuple(vector[end]["shape"]), vector[end]["dtype"]),)
        for end in ("input", "output")
    ]
    fragments = tuple(map(bytes.fromhex, vector["fragments"]))
    return Stretch(fragments, *ends, vector["ir_version"], vector["opset"])


def test_fragments_compose_to_the_same_bytes_everywhere(stretch):
    model = compose(stretch)
    assert model.hex() == VECTORS["composition"]["model"]
    assert hashlib.sha256(model).hexdigest() == VECTORS["composition"]["model_sha256"]


def test_the_composed_model_answers_as_stated(stretch, runtime):
    answer = VECTORS["composition"]["answer"]
    [output] = runtime.load(stretch).run([np.array([answer["input"]], dtype=np.float32)])
    assert output.tolist() == [answer["output"]]


def test_the_signature_is_of_exactly_these_bytes(tmp_path):
    vector = VECTORS["signature"]
    key = tmp_path / "key.pub"
    key.write_text(vector["public_key"])
    data, signature = bytes.fromhex(vector["manifest"]), bytes.fromhex(vector["signature"])
    signing.verify(data, signature, public_key=key)
    rewritten = json.dumps(json.loads(data)).encode() + b"\n"
    with pytest.raises(SignatureError):
        signing.verify(rewritten, signature, public_key=key)
