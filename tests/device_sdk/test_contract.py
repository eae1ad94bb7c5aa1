"""The golden vectors of tests/contract, which every implementation of the SDK reads."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from functools import reduce
from pathlib import Path

import msgspec
import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.errors import (
    CompositionError,
    ManifestError,
    ProtocolError,
    SignatureError,
    UnsupportedFormatError,
    UsageError,
)
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.files.atomic import decode_json
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.fragments.operators import ELEMENT_BYTES, OPERATORS
from device_sdk.offload.packing import Activations, pack, unpack
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.signing import signatures
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Rendition, TensorSpec
from device_sdk.supernet.deciders.port import confidence, hard, leaving
from device_sdk.supernet.home import PROVIDERS, Home
from device_sdk.supernet.paths import (
    WindowSampler,
    architecture_count,
    enumerate_subnets,
    k_cheapest,
    sample_uniformly,
    subnet_count,
)
from device_sdk.supernet.plan import Decider, Edge, ExitChoice, Plan, Subnet, decode_plan, encode_plan, size_text
from device_sdk.supernet.supernet import Supernet
from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[1] / "contract"
VECTORS = json.loads((CONTRACT / "vectors.json").read_text())
GRAPH = VECTORS["graph"]
AT_SIZES = VECTORS["graph_at_sizes"]
BUNDLE = VECTORS["bundle"]
PACKETS = VECTORS["packets"]
REFERENCE = CONTRACT / BUNDLE["folder"]
ERRORS = {"ManifestError": ManifestError, "UnsupportedFormatError": UnsupportedFormatError}


def subnet_of(text):
    """The subnet that ``str`` writes as ``text``."""
    size, _, blocks = text.rpartition(": ")
    return Subnet(tuple(Edge.parse(f"{word}:{size}") for word in blocks.split()))


def float32s(bits):
    return [struct.unpack(">f", bytes.fromhex(one))[0] for one in bits]


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("vectors", tmp_path)
    assert not found, "python tests/contract/write_vectors.py"
    assert contents(tmp_path / "bundle") == contents(REFERENCE), "python tests/contract/write_vectors.py"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    more = k_cheapest(supernet, weight, k=len(GRAPH["cheapest"]))
    assert [{"weight": total, "subnet": str(subnet)} for total, subnet in more] == GRAPH["cheapest"]


@pytest.fixture(scope="module")
def supernet_at_sizes():
    def rendition(block, name):
        return Rendition(name, "none", "0" * 64, 1, Golden((), 0.0), any_size=name in block["any_size"])

    def block(one):
        kind = "original" if one["end"] == one["start"] + 1 else "merged"
        renditions = tuple(rendition(one, name) for name in one["renditions"])
        return Block(one["id"], one["start"], one["end"], kind, parameters=0, macs=0, renditions=renditions)

    cuts = [
        CutPoint(index, tuple(TensorSpec(f"cut_{index}_{n}", tuple(shape)) for n, shape in enumerate(shapes)))
        for index, shapes in enumerate(AT_SIZES["shapes"])
    ]
    sizes = msgspec.convert([{**one, "golden": Golden((), 0.0)} for one in AT_SIZES["input_sizes"]], list[InputSize])
    return Supernet(cuts, map(block, AT_SIZES["blocks"]), input_sizes=sizes)


def test_input_sizes_make_the_same_graph_everywhere(supernet_at_sizes):
    supernet = supernet_at_sizes
    assert supernet.node_count == AT_SIZES["node_count"]
    assert [[[str(edge), end] for edge, end in edges] for edges in supernet.edges_from] == AT_SIZES["edges_from"]
    assert {name: sorted(axes) for name, axes in supernet.free_axes.items()} == AT_SIZES["free_axes"]
    assert str(supernet.original) == AT_SIZES["original"]
    assert str(supernet.any_size_original) == AT_SIZES["any_size_original"]


def test_paths_over_input_sizes_are_the_same_everywhere(supernet_at_sizes):
    supernet = supernet_at_sizes

    def weight(edge):
        return AT_SIZES["weights"][str(edge)]

    assert str(architecture_count(supernet)) == AT_SIZES["architecture_count"]
    assert str(subnet_count(supernet)) == AT_SIZES["subnet_count"]
    assert list(map(str, enumerate_subnets(supernet, limit=len(AT_SIZES["subnets"])))) == AT_SIZES["subnets"]
    cheapest = k_cheapest(supernet, weight, k=len(AT_SIZES["subnets"]) + 1)
    assert [{"weight": total, "subnet": str(one)} for total, one in cheapest] == AT_SIZES["cheapest"]
    uniform, window = AT_SIZES["samples"], AT_SIZES["window_samples"]
    drawn = sample_uniformly(supernet, count=20, random=SplitMix64(int(uniform["seed"])))
    assert list(map(str, drawn)) == uniform["subnets"]
    sampler = WindowSampler(supernet, weight, low=window["low"], high=window["high"])
    drawn = sampler.sample(count=20, random=SplitMix64(int(window["seed"])))
    assert list(map(str, drawn)) == window["subnets"]


def named(case):
    return f"{case.get('kind', 'refused')} {case['json'][-60:]}"


@pytest.mark.parametrize("case", VECTORS["plans"], ids=named)
def test_plans_as_json_are_the_same_everywhere(reference, case):
    def read() -> Plan:
        plan = decode_plan(case["json"].encode())
        reference.supernet.check_plan(plan)
        return plan

    if "kind" in case:
        assert read().kind == case["kind"]
        assert encode_plan(read()).decode() == case["json"]
    else:
        with pytest.raises(UsageError):
            read()


@pytest.mark.parametrize("case", VECTORS["deciders"]["deciders"], ids=lambda case: case["kind"])
def test_deciders_find_the_same_samples_hard_everywhere(case):
    logits = np.array([float32s(row) for row in VECTORS["deciders"]["logits"]], dtype=np.float32)
    stored = {key: value for key, value in case.items() if key != "hard"}
    decider = msgspec.convert(stored, Decider, strict=False)
    assert hard(decider, logits).tolist() == case["hard"]


@pytest.mark.parametrize("case", VECTORS["deciders"]["exits"], ids=lambda case: str(case["ask_below"]))
def test_exits_answer_and_ask_about_the_same_samples_everywhere(case):
    rows = [float32s(row) for row in VECTORS["deciders"]["logits"]]
    logits = np.array([*rows, [np.nan] * len(rows[0])], dtype=np.float32)
    answers, asks = leaving(ExitChoice("x", case["threshold"], ask_below=case["ask_below"]), logits)
    assert (answers.tolist(), asks.tolist()) == (case["answers"], case["asks"])


@pytest.mark.parametrize("case", VECTORS["subnets"], ids=lambda case: case.get("text", case["json"]))
def test_subnets_as_json_are_the_same_everywhere(reference, case):
    if "text" not in case:
        with pytest.raises((UsageError, ValueError)):
            reference.supernet.check(decode_json(case["json"].encode(), Subnet))
        return
    subnet = decode_json(case["json"].encode(), Subnet)
    reference.supernet.check(subnet)
    assert (str(subnet), list(subnet.input_size)) == (case["text"], case["input_size"])
    assert subnet == subnet_of(case["text"])
    assert msgspec.json.encode(subnet).decode() == case["json"]


@pytest.mark.parametrize("case", VECTORS["homes"]["read"], ids=lambda case: case["text"])
def test_homes_are_read_and_written_the_same_everywhere(case):
    home = Home.parse(case["text"])
    assert {"text": str(home), **msgspec.to_builtins(home)} == case
    assert VECTORS["homes"]["providers"] == PROVIDERS


@pytest.mark.parametrize("text", VECTORS["homes"]["refused"])
def test_what_is_no_home_is_refused_everywhere(text):
    with pytest.raises(UsageError):
        Home.parse(text)


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


def test_axes_that_stay_open_compose_to_the_same_bytes_everywhere(stretch):
    vector = VECTORS["composition"]["any_size"]
    free = {name: frozenset(axes) for name, axes in vector["free_axes"].items()}
    assert compose(replace(stretch, free_axes=free)).hex() == vector["model"]


def test_the_composed_model_answers_as_stated(stretch, runtime):
    answer = VECTORS["composition"]["answer"]
    [output] = runtime.load(stretch).run([np.array([answer["input"]], dtype=np.float32)])
    assert output.tolist() == [answer["output"]]


def test_an_exit_is_composed_like_a_block_and_answers_last(stretch, runtime):
    vector = VECTORS["composition"]["exit"]
    spec = TensorSpec(vector["output"]["name"], tuple(vector["output"]["shape"]))
    fragments = (*stretch.fragments, bytes.fromhex(vector["fragment"]))
    with_exit = replace(stretch, fragments=fragments, outputs=(*stretch.outputs, spec))
    assert compose(with_exit).hex() == vector["model"]
    answer = VECTORS["composition"]["answer"]
    outputs = runtime.load(with_exit).run([np.array([answer["input"]], dtype=np.float32)])
    assert [output.tolist() for output in outputs] == [[answer["output"]], [vector["answer"]]]


@pytest.mark.parametrize("case", VECTORS["refused_fragments"], ids=lambda case: case["name"])
def test_fragments_that_make_no_model_are_refused_everywhere(stretch, case):
    fragments = tuple(map(bytes.fromhex, case["fragments"]))
    with pytest.raises(CompositionError):
        compose(replace(stretch, fragments=fragments))


def test_the_table_of_operators_and_element_types_is_the_same_everywhere():
    table = VECTORS["fragment_table"]
    assert set(table["operators"]) == OPERATORS
    assert set(table["element_types"]) == ELEMENT_BYTES.keys()


def test_pixels_are_prepared_to_the_same_bits_everywhere():
    vector = VECTORS["preprocessing"]
    preprocessing = Preprocessing(vector["scale"], tuple(vector["mean"]), tuple(vector["std"]))
    images = np.stack(
        [
            np.frombuffer(bytes.fromhex(one["pixels"]), dtype=np.uint8).reshape(one["height"], one["width"], 3)
            for one in vector["images"]
        ]
    )
    prepared = prepare(images, preprocessing, input_shape=(3, *images.shape[1:3]))
    assert prepared.ravel().tolist() == float32s(vector["prepared"])


@pytest.fixture(scope="module")
def packet_supernet():
    cuts = [
        CutPoint(index, tuple(TensorSpec(f"cut_{index}_{number}", tuple(shape)) for number, shape in enumerate(shapes)))
        for index, shapes in enumerate(PACKETS["shapes"])
    ]
    blocks = []
    for number in range(len(cuts) - 1):
        forms = [Rendition(name, "none", "0" * 64, 1, Golden((), 0.0)) for name in ("fp32", "int8")]
        blocks.append(Block(f"o{number}", number, number + 1, "original", 0, 0, tuple(forms)))
    return Supernet(cuts, blocks)


@pytest.mark.parametrize("case", PACKETS["written"], ids=lambda case: f"{case['bits']} {case['per_channel']}")
def test_packets_are_written_to_the_same_bytes_everywhere(case):
    shapes = PACKETS["shapes"][case["position"]]
    tensors = tuple(
        np.array(float32s(values), np.float32).reshape(case["batch"], *shape)
        for values, shape in zip(case["tensors"], shapes, strict=True)
    )
    sent = Activations(PACKETS["bundle"], case["position"], tuple(map(Edge.parse, case["tail"])), tensors)
    assert pack(sent, bits=case["bits"], per_channel=case["per_channel"]).hex() == case["packet"]


@pytest.mark.parametrize("case", PACKETS["written"] + PACKETS["read"], ids=lambda case: case["packet"][92:130])
def test_packets_are_read_to_the_same_values_everywhere(packet_supernet, case):
    found = unpack(bytes.fromhex(case["packet"]), supernet=packet_supernet, bundle=PACKETS["bundle"])
    assert (found.position, list(map(str, found.tail))) == (case["position"], case["tail"])
    assert [tensor.ravel().tolist() for tensor in found.tensors] == list(map(float32s, case["decoded"]))


@pytest.mark.parametrize("case", PACKETS["refused"], ids=lambda case: case["name"])
def test_packets_that_do_not_fit_are_refused_everywhere(packet_supernet, case):
    with pytest.raises(ProtocolError):
        unpack(bytes.fromhex(case["packet"]), supernet=packet_supernet, bundle=PACKETS["bundle"])


@pytest.mark.parametrize("case", VECTORS["confidence"], ids=lambda case: str(case["logits"]))
def test_confidence_is_the_same_everywhere(case):
    logits = np.array([case["logits"]], dtype=np.float32)
    assert confidence(logits)[0] == pytest.approx(case["confidence"], rel=1e-12)


@pytest.mark.parametrize("case", VECTORS["manifests"], ids=lambda case: case["name"])
def test_the_same_manifests_are_taken_everywhere(case):
    manifest = json.loads((REFERENCE / "manifest.json").read_bytes())
    if case["path"]:
        *parents, last = case["path"]
        parent = reduce(lambda value, step: value[step], parents, manifest)
        if "value" in case:
            parent[last] = case["value"]
        else:
            del parent[last]
    decode_or_refuse(json.dumps(manifest, ensure_ascii=False).encode(), case["outcome"])


@pytest.mark.parametrize("case", VECTORS["raw_manifests"], ids=lambda case: case["name"])
def test_what_is_no_manifest_is_refused_everywhere(case):
    decode_or_refuse(bytes.fromhex(case["data"]), case["outcome"])


def decode_or_refuse(data, outcome):
    if outcome == "accepted":
        decode_manifest(data)
        return
    with pytest.raises(ERRORS[outcome]) as caught:
        decode_manifest(data)
    assert type(caught.value) is ERRORS[outcome]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    key = tmp_path_factory.mktemp("key") / "key.pub"
    key.write_text(VECTORS["signature"]["public_key"])
    return Bundle.open(REFERENCE, trust=key)


def test_the_reference_bundle_reproduces_what_was_computed_without_a_runtime(reference, runtime):
    run_self_test(Workspace(reference, runtime))
    assert reference.digest == BUNDLE["digest"]
    answers = {}
    for edge in reference.supernet.edges:
        if edge.input_size:
            continue
        block = reference.supernet.block(edge.block)
        answers[f"block {edge}"] = golden_argmax(reference, runtime, (edge,), None, block.start)
    for exit_ in reference.supernet.exits:
        choice = ExitChoice(exit_.id, threshold=1.0)
        answers[f"exit {exit_.id}"] = golden_argmax(reference, runtime, (), choice, exit_.position)
    answers["the original path"] = golden_argmax(reference, runtime, reference.supernet.original.edges, None, 0)
    for one in reference.supernet.input_sizes:
        edges = reference.supernet.any_size_original.at(one.size).edges
        answers[f"the original path at {size_text(one.size)}"] = golden_argmax(reference, runtime, edges, None, 0)
    assert answers == BUNDLE["argmax"]


def golden_argmax(reference, runtime, edges, choice, start):
    self_test = reference.manifest.self_test
    cuts = reference.supernet.cut_points_at(edges[0].input_size if edges else ())
    inputs = golden_inputs(cuts[start], seed=self_test.seed, batch=self_test.batch)
    output = runtime.load(reference.stretch(edges, choice)).run(inputs)[-1]
    return output.reshape(len(output), -1).argmax(axis=1).tolist()


def test_the_reference_bundles_graph_is_the_same_everywhere(reference):
    supernet = reference.supernet

    def macs(edge):
        return float(supernet.block(edge.block).macs)

    assert str(architecture_count(supernet)) == BUNDLE["architecture_count"]
    assert str(subnet_count(supernet)) == BUNDLE["subnet_count"]
    samples = BUNDLE["samples"]
    drawn = sample_uniformly(supernet, count=len(samples["subnets"]), random=SplitMix64(int(samples["seed"])))
    assert list(map(str, drawn)) == samples["subnets"]
    cheapest = k_cheapest(supernet, macs, k=len(BUNDLE["cheapest_by_macs"]))
    assert [str(subnet) for _, subnet in cheapest] == BUNDLE["cheapest_by_macs"]


@pytest.mark.parametrize("case", BUNDLE["plans"]["cases"], ids=lambda case: f"{case['subnet']} {len(case['exits'])}")
def test_plans_answer_the_same_everywhere(reference, runtime, case):
    plans = BUNDLE["plans"]
    subnet = subnet_of(case["subnet"])
    plan = Plan(subnet, exits=tuple(ExitChoice(one["exit"], one["threshold"]) for one in case["exits"]))
    cut = reference.supernet.cut_points_at(subnet.input_size)[0]
    [inputs] = golden_inputs(cut, seed=int(plans["seed"]), batch=plans["batch"])
    outcome = LoadedPlan(reference, runtime, plan).run(inputs)
    names = [f"exit {one['exit']}" for one in case["exits"]] + ["subnet"]
    assert [names[index] for index in outcome.answered_by] == case["source"]
    np.testing.assert_allclose(outcome.output, case["output"], rtol=0, atol=plans["tolerance"])
    classes = reference.manifest.task.class_names
    assert [classes[index] for index in outcome.output.argmax(axis=1)] == case["labels"]


@pytest.mark.parametrize("case", BUNDLE["plans"]["refused"], ids=lambda case: f"{case['subnet']} {case['exits']}")
def test_plans_that_do_not_run_at_their_input_size_are_refused_everywhere(reference, runtime, case):
    plan = Plan(subnet_of(case["subnet"]), exits=tuple(ExitChoice(one, 0.5) for one in case["exits"]))
    with pytest.raises(UsageError):
        LoadedPlan(reference, runtime, plan)


def test_the_signature_is_of_exactly_these_bytes(tmp_path):
    vector = VECTORS["signature"]
    key = tmp_path / "key.pub"
    key.write_text(vector["public_key"])
    data, signature = bytes.fromhex(vector["manifest"]), bytes.fromhex(vector["signature"])
    signatures.verify(data, signature, public_key=key)
    rewritten = json.dumps(json.loads(data)).encode() + b"\n"
    with pytest.raises(SignatureError):
        signatures.verify(rewritten, signature, public_key=key)
