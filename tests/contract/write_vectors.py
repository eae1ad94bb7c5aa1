"""Writes vectors.json and bundle/: what Python and Kotlin both must reproduce (see README.md)."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import numpy as np
from cryptography.hazmat.primitives import serialization
from manifest_cases import limit_cases, manifest_cases, raw_cases
from packet_cases import packet_vectors
from reference_bundle import CLASSES, EXITS, KEY, SIDE, ReferenceBundle, Values

from device_sdk.bundles.manifest import Manifest, encode_manifest
from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.delivery.marks import Mark, encode_mark
from device_sdk.fragments import protobuf
from device_sdk.fragments.composition import Stretch, compose
from device_sdk.fragments.operators import ELEMENT_BYTES, OPERATORS
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.signing import signatures
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Rendition, TensorSpec
from device_sdk.supernet.deciders.port import confidence, ease, hard, leaving
from device_sdk.supernet.deciders.router import meta_features
from device_sdk.supernet.home import PROVIDERS, Home
from device_sdk.supernet.paths import (
    WindowSampler,
    architecture_count,
    enumerate_subnets,
    k_cheapest,
    sample_uniformly,
    subnet_count,
)
from device_sdk.supernet.plan import (
    ANY_SERVER,
    UNREACHABLE_CONFIDENCE,
    Abstain,
    Ask,
    Edge,
    Entropy,
    ExitChoice,
    Logistic,
    Margin,
    MaxConfidence,
    Plan,
    RemoteRef,
    Router,
    Split,
    Subnet,
    encode_plan,
    size_text,
)
from device_sdk.supernet.supernet import Supernet

SEEDS = (0, 1, 42, 1234567, 2**64 - 1)
REFERENCE_BUNDLE = "bundle"


def main(target: Path) -> None:
    """Write all vectors to ``target``, and the reference bundle beside it."""
    reference = ReferenceBundle()
    manifest = reference.write(target.with_name(REFERENCE_BUNDLE))
    vectors = {
        "random": [random_vectors(seed) for seed in SEEDS],
        "graph": graph_vectors(),
        "graph_at_sizes": graph_at_sizes_vectors(),
        "subnets": subnet_vectors(),
        "plans": plan_vectors(),
        "homes": home_vectors(),
        "deciders": decider_vectors(),
        "packets": packet_vectors(),
        "golden": golden_vectors(),
        "composition": composition_vectors(),
        "signature": signature_vectors(),
        "refused_fragments": refused_fragments(),
        "fragment_table": {"operators": sorted(OPERATORS), "element_types": sorted(ELEMENT_BYTES)},
        "preprocessing": preprocessing_vectors(),
        "confidence": confidence_vectors(),
        "marks": mark_vectors(),
        "manifests": manifest_cases(),
        "raw_manifests": raw_cases(),
        "manifest_limits": limit_cases(),
        "bundle": bundle_vectors(reference, manifest),
    }
    target.write_text(json.dumps(vectors, indent=1) + "\n")


def random_vectors(seed: int) -> dict[str, Any]:
    """The stream of one seed, in every form in which it is drawn; each form starts a stream of its own."""

    def draws(bound: int) -> list[str]:
        random = SplitMix64(seed)
        return [str(random.below(bound)) for _ in range(4)]

    random, doubles = SplitMix64(seed), SplitMix64(seed)
    return {
        "seed": str(seed),
        "words": [str(random.next()) for _ in range(6)],
        "below": [{"bound": str(bound), "values": draws(bound)} for bound in (1, 7, 1000, 2**63 + 1, 2**64, 10**30)],
        "uniform": [struct.pack(">d", doubles.uniform()).hex() for _ in range(4)],
        "uniform_floats": float32s(uniform_floats(seed, 6)),
        "shuffled": SplitMix64(seed).shuffled(range(10)),
    }


def float32s(values: Iterable[float]) -> list[str]:
    """The bits of float32 values."""
    return [struct.pack(">f", value).hex() for value in values]


def elastic_supernet(length: int) -> Supernet:
    """Originals o0 …, merged blocks of spans 2 and 3, and an int8 rendition of every second original."""

    def block(name: str, start: int, end: int, renditions: tuple[str, ...] = ("fp32",)) -> Block:
        kind = "original" if end == start + 1 else "merged"
        forms = tuple(Rendition(one, "none", "0" * 64, 1, Golden((), 0.0)) for one in renditions)
        return Block(name, start, end, kind, parameters=0, macs=0, renditions=forms)

    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", (1,)),)) for index in range(length + 1)]
    blocks = [block(f"o{i}", i, i + 1, ("fp32", "int8")[: 2 - i % 2]) for i in range(length)]
    blocks += [block(f"m{i}-{i + n}", i, i + n) for i in range(length) for n in (2, 3) if i + n <= length]
    return Supernet(cuts, blocks)


OTHER_SIZES = ((4, 6), (1, 1))  # height and width; the model's own is 2x2


def sized_supernet() -> Supernet:
    """Originals o0 … o3, merged blocks and int8 renditions, of which m0-3 and that of o2 run only at the own size."""

    def block(name: str, start: int, end: int, *, int8: bool | None = None, any_size: bool = True) -> Block:
        flags = {"fp32": any_size} if int8 is None else {"fp32": any_size, "int8": int8}
        forms = [Rendition(one, "none", "0" * 64, 1, Golden((), 0.0), any_size=flag) for one, flag in flags.items()]
        kind = "original" if end == start + 1 else "merged"
        return Block(name, start, end, kind, parameters=0, macs=0, renditions=tuple(forms))

    def shapes(height: int, width: int) -> list[tuple[tuple[int, ...], ...]]:
        return [((3, height, width),), ((4, height, width),), ((4, 1, 1), (4, height, width)), ((8, 1, 1),), ((5,),)]

    cuts = [
        CutPoint(index, tuple(TensorSpec(f"cut_{index}_{number}", shape) for number, shape in enumerate(tensors)))
        for index, tensors in enumerate(shapes(2, 2))
    ]
    blocks = [block("o0", 0, 1, int8=True), block("m0-2", 0, 2), block("m0-3", 0, 3, any_size=False)]
    blocks += [block("o1", 1, 2), block("m1-3", 1, 3), block("o2", 2, 3, int8=False), block("o3", 3, 4)]
    sizes = [InputSize(size, tuple(shapes(*size)), Golden((), 0.0)) for size in OTHER_SIZES]
    return Supernet(cuts, blocks, input_sizes=sizes)


def weight_of(supernet: Supernet, edge: Edge) -> float:
    """A weight in 64ths, so that sums are exact in any order."""
    block = supernet.block(edge.block)
    own = {1: 1.0, 2: 1.25, 3: 1.375}[block.end - block.start] * (0.5 if edge.rendition == "int8" else 1.0)
    return own * {(): 1.0, (4, 6): 2.0, (1, 1): 0.75}[edge.input_size]


def graph_vectors() -> dict[str, Any]:
    """A graph, how many paths it has, which are cheapest, and what a seed draws from it."""
    supernet = elastic_supernet(12)

    def weight(edge: Edge) -> float:
        return weight_of(supernet, edge)

    def written(subnets: Iterable[Subnet]) -> list[str]:
        return [str(subnet) for subnet in subnets]

    cheapest = k_cheapest(supernet, weight, k=3)
    sampler = WindowSampler(supernet, weight, low=7.0, high=7.5)
    return {
        "cut_points": len(supernet.cut_points),
        "blocks": [
            {"id": one.id, "start": one.start, "end": one.end, "renditions": [form.name for form in one.renditions]}
            for one in supernet.blocks
        ],
        "weights": {str(edge): weight(edge) for edge in supernet.edges},
        "architecture_count": str(architecture_count(supernet)),
        "subnet_count": str(subnet_count(supernet)),
        "counts_by_length": {str(n): str(subnet_count(elastic_supernet(n))) for n in (1, 2, 3, 27, 60)},
        "cheapest_weights": [total for total, _ in cheapest],
        "cheapest": [{"weight": total, "subnet": str(one)} for total, one in k_cheapest(supernet, weight, k=12)],
        "samples": {"seed": "5", "subnets": written(sample_uniformly(supernet, count=5, random=SplitMix64(5)))},
        "window_samples": {
            "seed": "5",
            "low": 7.0,
            "high": 7.5,
            "subnets": written(sampler.sample(count=5, random=SplitMix64(5))),
        },
    }


def graph_at_sizes_vectors() -> dict[str, Any]:
    """A graph of three input sizes: its nodes and edges in order, all of its paths, and what a seed draws from it."""
    supernet = sized_supernet()

    def weight(edge: Edge) -> float:
        return weight_of(supernet, edge)

    def shapes(cuts: Iterable[CutPoint]) -> list[list[list[int]]]:
        return [[list(spec.shape) for spec in cut.tensors] for cut in cuts]

    paths = list(enumerate_subnets(supernet, limit=1000))
    sampler = WindowSampler(supernet, weight, low=3.0, high=4.0)
    return {
        "shapes": shapes(supernet.cut_points),
        "input_sizes": [{"size": list(one.size), "shapes": one.shapes} for one in supernet.input_sizes],
        "blocks": [
            {
                "id": one.id,
                "start": one.start,
                "end": one.end,
                "renditions": [form.name for form in one.renditions],
                "any_size": [form.name for form in one.renditions if form.any_size],
            }
            for one in supernet.blocks
        ],
        "node_count": supernet.node_count,
        "edges_from": [[[str(edge), end] for edge, end in leaving] for leaving in supernet.edges_from],
        "weights": {str(edge): weight(edge) for edge in supernet.edges},
        "free_axes": {name: sorted(axes) for name, axes in supernet.free_axes.items()},
        "architecture_count": str(architecture_count(supernet)),
        "subnet_count": str(subnet_count(supernet)),
        "original": str(supernet.original),
        "any_size_original": str(supernet.any_size_original),
        "subnets": list(map(str, paths)),
        "cheapest": [
            {"weight": total, "subnet": str(one)} for total, one in k_cheapest(supernet, weight, k=len(paths) + 1)
        ],
        "samples": {"seed": "6", "subnets": list(map(str, sample_uniformly(supernet, count=20, random=SplitMix64(6))))},
        "window_samples": {
            "seed": "6",
            "low": 3.0,
            "high": 4.0,
            "subnets": list(map(str, sampler.sample(count=20, random=SplitMix64(6)))),
        },
    }


LOGISTIC = Logistic(
    0.75, ("top_1", "top_2", "entropy", "logit_margin", "log_sum_exp"), (1.5, -2.0, -0.25, 0.5, 0.125), -0.5
)
BY_CLASS = msgspec.structs.replace(LOGISTIC, by_answer=(0.5, -0.5, 0.25), by_runner_up=(0.0, 1.0, -0.125))
LOGISTIC_JSON = json.loads(msgspec.json.encode(LOGISTIC))
ROUTER_JSON = {"kind": "router", "threshold": 0.5, "hidden": [1, 1], "weights": ""}
_FLOATS = 4 * Router.weight_count((1, 1))
BAD_ROUTER: list[dict[str, Any]] = [
    {"weights": base64.b64encode(bytes(_FLOATS - 4)).decode()},
    {"weights": base64.b64encode(bytes(_FLOATS)).decode(), "hidden": [1, 2]},
    {"weights": base64.b64encode(bytes(_FLOATS)).decode(), "hidden": [0, 1]},
    {"weights": base64.b64encode(bytes(_FLOATS)).decode(), "hidden": [1, 1, 1]},
    {"weights": base64.b64encode(bytes(_FLOATS)).decode(), "hidden": 1},
    {"weights": base64.b64encode(bytes(_FLOATS)).decode(), "hidden": [257, 1]},
    {"weights": base64.b64encode(bytes(_FLOATS)).decode(), "bias": 1.0},
    {"weights": base64.b64encode(bytes(_FLOATS - 4) + struct.pack("<f", float("nan"))).decode()},
    {"weights": base64.b64encode(bytes(_FLOATS)).decode().rstrip("=")},
    {"weights": "=" + base64.b64encode(bytes(_FLOATS)).decode()},
    {"weights": [0.0] * Router.weight_count((1, 1))},
    {"weights": "A-_" + base64.b64encode(bytes(_FLOATS)).decode()[3:]},
]
BAD_LOGISTIC: list[dict[str, Any]] = [
    {"weights": [1.0]},
    {"features": [], "weights": []},
    {"features": ["top_3"], "weights": [1.0]},
    {"bias": None},
    {"temperature": 1.0},
    {"by_answer": [1.0, 2.0, 3.0]},
    {"by_answer": [1.0], "by_runner_up": [1.0]},
]


def plan_vectors() -> list[dict[str, Any]]:
    """Plans as JSON: one of each kind that the reference bundle has, byte for byte; others are refused.

    A case without a kind is refused, when it is read or when it is checked.
    """

    def path(*names: str) -> tuple[Edge, ...]:
        return tuple(Edge(*name.split("@")) for name in names)

    whole, own = path("o0", "o1", "o2", "o3"), path("o0@int8", "o1", "o2", "o3")
    server, tails = RemoteRef("reference", "ab" * 32), RemoteRef("reference:tail", "cd" * 32)
    early = (ExitChoice("x1-pooled", 0.75), ExitChoice("x3-pooled", UNREACHABLE_CONFIDENCE))
    asking = (
        ExitChoice("x1-pooled", 0.75, ask_below=0.25),
        ExitChoice("x2-flat", UNREACHABLE_CONFIDENCE, ask_below=1.0),
    )
    ask, sends = Ask(MaxConfidence(0.5), server), Ask(Margin(0.125), tails, 2, whole[2:])
    taken = [
        Plan(Subnet(own)),
        Plan(Subnet(tuple(edge.at((4, 4)) for edge in whole))),
        Plan(Subnet(whole), exits=early),
        Plan(Subnet(whole), split=Split(2, (8, 8), whole[2:], tails)),
        Plan(Subnet(own), split=Split(0, (8,), whole, tails)),
        Plan(Subnet(whole), split=Split(2, (4, 2), whole[2:], tails)),
        Plan(Subnet(whole), split=Split(2, (4, 2), whole[2:], tails, per_channel=True)),
        Plan(Subnet(whole), split=Split(2, (3, 8), whole[2:], tails, "abstain", per_channel=True, compress=True)),
        Plan(Subnet(whole), split=Split(2, (8, 8), whole[2:], tails, "abstain")),
        Plan(Subnet(whole), exits=early[:1], split=Split(2, (8, 8), whole[2:], tails, "exit")),
        Plan(Subnet(whole), split=Split(0, (), (), server)),
        Plan(Subnet(whole), split=Split(0, (), (), server), hard=Abstain(Margin(0.5))),
        Plan(Subnet(whole), hard=Ask(MaxConfidence(0.5), server)),
        Plan(Subnet(whole), hard=Ask(LOGISTIC, server)),
        Plan(Subnet(whole), hard=Abstain(BY_CLASS)),
        Plan(Subnet(whole), hard=Ask(router((1, 2), threshold=0.25), server)),
        Plan(Subnet(whole), hard=Ask(Entropy(0.25), ANY_SERVER)),
        Plan(Subnet(own), exits=early[:1], hard=Ask(Margin(0.125), tails, 2, whole[2:])),
        Plan(Subnet(whole), exits=asking, hard=ask),
        Plan(Subnet(whole), exits=(msgspec.structs.replace(early[0], ask_below=0.75),), hard=ask),
        Plan(Subnet(whole), exits=asking[1:], hard=sends),
        Plan(Subnet(whole), hard=Abstain(MaxConfidence(0.5))),
        Plan(Subnet(whole), exits=early, hard=Abstain(Entropy(1.0))),
        Plan(Subnet(whole), split=Split(2, (8, 8), whole[2:], tails), hard=Abstain(Margin(0.5))),
        Plan(Subnet(at_homes(own, "cpu-2t", "cpu-2t", "", "")), exits=early),
        Plan(Subnet(at_homes(whole, "", "cpu-4t-big", "", "xnnpack-2t")), hard=Abstain(Margin(0.5))),
    ]
    cases: list[dict[str, Any]] = [{"json": encode_plan(plan).decode(), "kind": plan.kind} for plan in taken]
    unfit = [
        Plan(Subnet(whole[:2])),
        Plan(Subnet(whole), exits=early[::-1]),
        Plan(Subnet(path("m0-2", "o2", "o3")), exits=early[:1]),
        Plan(Subnet(whole), split=Split(4, (8,), (), tails)),
        Plan(Subnet(whole), split=Split(0, (8,), (), server)),
        Plan(Subnet(whole), split=Split(2, (8, 8), (), server)),
        Plan(Subnet(whole), split=Split(0, (), (), server, compress=True)),
        Plan(Subnet(whole), exits=early[:1], split=Split(0, (), (), server)),
        Plan(Subnet(tuple(edge.at((4, 4)) for edge in whole)), split=Split(0, (), (), server)),
        Plan(Subnet(whole), split=Split(2, (8,), whole[2:], tails)),
        Plan(Subnet(whole), split=Split(2, (8, 9), whole[2:], tails)),
        Plan(Subnet(whole), split=Split(2, (0, 8), whole[2:], tails)),
        Plan(Subnet(whole), split=Split(2, (8, 8), whole[1:], tails)),
        Plan(Subnet(whole), split=Split(2, (8, 8), tuple(edge.at((4, 4)) for edge in whole[2:]), tails)),
        Plan(Subnet(path("m0-2", "o2", "o3")), split=Split(1, (8,), whole[1:], tails)),
        Plan(Subnet(tuple(edge.at((4, 4)) for edge in whole)), split=Split(2, (8, 8), whole[2:], tails)),
        Plan(Subnet(whole), exits=early, split=Split(2, (8, 8), whole[2:], tails)),
        Plan(Subnet(whole), split=Split(2, (8, 8), whole[2:], tails, "exit")),
        Plan(
            Subnet(whole),
            split=Split(2, (8, 8), whole[2:], tails, "abstain"),
            hard=Ask(Margin(0.125), tails, 2, whole[2:]),
        ),
        Plan(Subnet(whole), hard=Ask(MaxConfidence(0.5), server, "input", whole[2:])),
        Plan(Subnet(whole), hard=Ask(MaxConfidence(0.5), tails, 2)),
        Plan(Subnet(whole), hard=Ask(MaxConfidence(0.5), tails, 9, whole[2:])),
        Plan(Subnet(whole), exits=asking),
        Plan(Subnet(whole), exits=asking, hard=Abstain(Margin(0.5))),
        Plan(Subnet(whole), exits=asking, hard=sends),
        Plan(Subnet(whole), exits=asking[:1], split=Split(2, (8, 8), whole[2:], tails), hard=ask),
        Plan(Subnet(whole), exits=(msgspec.structs.replace(early[0], ask_below=0.76),), hard=ask),
        Plan(Subnet(whole), exits=(msgspec.structs.replace(early[0], ask_below=-0.25),), hard=ask),
    ]
    good = json.loads(encode_plan(Plan(Subnet(whole))))
    split = json.loads(encode_plan(taken[3]))["split"]
    changed = [
        good | {"format": 1},
        good | {"format": 3},
        {key: value for key, value in good.items() if key != "format"},
        good | {"escalation": {"threshold": 0.5}},
        good | {"hard": {"kind": "pray"}},
        good | {"hard": {}},
        good | {"hard": None},
        good | {"hard": {"kind": "abstain", "decider": {"kind": "oracle", "threshold": 0.5}}},
        good | {"hard": {"kind": "abstain", "decider": {"kind": "margin"}}},
        *(good | {"hard": {"kind": "abstain", "decider": LOGISTIC_JSON | one}} for one in BAD_LOGISTIC),
        *(good | {"hard": {"kind": "abstain", "decider": ROUTER_JSON | one}} for one in BAD_ROUTER),
        good | {"hard": {"kind": "answer", "loudly": True}},
        good | {"exits": [{"exit": "x1-pooled"}]},
        good | {"exits": [{"exit": "x1-pooled", "threshold": 0.5, "ask_below": None}]},
        good | {"exits": [{"exit": "x1-pooled", "threshold": 0.5, "ask_below": "0.25"}]},
        good | {"exits": [{"exit": "x1-pooled", "threshold": 0.5, "bits": 4}]},
        good | {"split": {"position": 2, "bits": 8}},
        good | {"split": split | {"fallback": "guess"}},
        good | {"split": split | {"fallback": None}},
        good | {"split": split | {"per_channel": None}},
        good | {"split": split | {"compress": 1}},
        good | {"split": split | {"codec": "deflate"}},
        good | {"subnet": {"edges": [{"block": "o0", "precision": 4}]}},
        good | {"subnet": {"edges": [edge | {"home": "cpu_2t"} for edge in good["subnet"]["edges"]]}},
        good | {"subnet": {"edges": [edge | {"home": "c" * 65} for edge in good["subnet"]["edges"]]}},
    ]
    texts = [encode_plan(plan).decode() for plan in unfit] + [json.dumps(one) for one in changed]
    return cases + [{"json": text} for text in [*texts, "", "[]", "{}", "nothing"]]


def decider_vectors() -> dict[str, Any]:
    """Logits, and for each decider which of the samples are hard; for each exit, which it answers and which ask."""
    random = SplitMix64(5)
    logits = np.array([[8 * random.uniform() - 4 for _ in range(5)] for _ in range(12)], dtype=np.float32)
    five = {"by_answer": (0.5, -0.5, 0.25, 1.0, -2.0), "by_runner_up": (0.0, 1.0, -0.125, 0.5, 0.75)}
    logistic = [LOGISTIC, msgspec.structs.replace(LOGISTIC, **five)]
    deciders = [MaxConfidence(0.6), Entropy(0.9), Margin(0.3), *logistic, router((3, 2), threshold=0.5)]
    many = np.array([[8 * random.uniform() - 4 for _ in range(12)] for _ in range(12)], dtype=np.float32)
    wide = router((4, 3), threshold=0.5)
    return {
        "logits": [float32s(row) for row in logits],
        "deciders": [{**json.loads(msgspec.json.encode(one)), "hard": hard(one, logits).tolist()} for one in deciders],
        "exits": [leaving_case(logits, *limits) for limits in LEAVING],
        "router": {
            "logits": [float32s(row) for row in many],
            "decider": json.loads(msgspec.json.encode(wide)),
            "features": meta_features(many).tolist(),
            "ease": ease(wide, many).tolist(),
        },
    }


LEAVING = ((0.6, 0.0), (0.8, 0.5), (0.6, 0.6), (UNREACHABLE_CONFIDENCE, 0.7), (0.0, 0.0), (0.8, 0.2))


def leaving_case(logits: Values, threshold: float, ask_below: float) -> dict[str, Any]:
    """Which samples an exit answers and which it asks about; the last sample's logits hold NaN."""
    spoiled = np.vstack([logits, np.full((1, logits.shape[1]), np.nan, dtype=np.float32)])
    assert np.abs(confidence(logits)[:, None] - (threshold, ask_below)).min() > 1e-6
    answers, asks = leaving(ExitChoice("x", threshold, ask_below=ask_below), spoiled)
    return {"threshold": threshold, "ask_below": ask_below, "answers": answers.tolist(), "asks": asks.tolist()}


def router(hidden: tuple[int, int], *, threshold: float) -> Router:
    """A router of small weights, so that some samples are hard."""
    random = SplitMix64(11)
    count = Router.weight_count(hidden)
    numbers = np.array([random.uniform() - 0.5 for _ in range(count)], dtype="<f4")
    numbers[101:202] = 1.5  # one over the spread
    return Router(threshold, hidden, numbers.tobytes())


def subnet_vectors() -> list[dict[str, Any]]:
    """Subnets as JSON: those that the reference bundle has, as text and as the bytes that are written; others refused.

    A case without a text is refused, when it is read or when it is checked.
    """

    def edges(*names: str, size: tuple[int, ...] = ()) -> tuple[Edge, ...]:
        return tuple(Edge(*name.split("@"), input_size=size) for name in names)

    own = edges("o0@int8", "o1", "o2", "o3")
    taken = [own, edges("m0-2", "s2", "o3"), edges("o0", "o1", "o2", "o3", size=(4, 4))]
    taken.append(edges("o0", "m1-3", "o3", size=(1, 1)))
    taken.append(at_homes(edges("o0", "o1", "o2", "o3", size=(4, 4)), "", "cpu-2t", "cpu-2t", "qnn-1t"))
    cases = [
        {"json": msgspec.json.encode(Subnet(one)).decode(), "text": str(Subnet(one)), "input_size": one[0].input_size}
        for one in taken
    ]
    refused = [
        edges("o0", "o1", "o2", "o3", size=(3, 3)),
        edges("o0", "o1", "o2", "o3", size=(2, 2)),  # the model's own, which is written as none
        edges("o0", "o1", "o2", "o3", size=(4, 1)),
        edges("o0", "o1", "o2", "o3", size=(0, 0)),
        edges("o0", "o1", "o2", "o3", size=(4,)),
        edges("o0", "o1", "o2", "o3", size=(4, 4, 4)),
        edges("o0@int8", "o1", "o2", "o3", size=(4, 4)),
        edges("o0", "o1", "s2", "o3", size=(1, 1)),
        edges("o0", "o1", size=(4, 4)),
        edges("o0", "o1") + edges("o2", "o3", size=(4, 4)),
        edges("o0", "o1", size=(4, 4)) + edges("o2", "o3"),
        edges("o0", "o1", size=(4, 4)) + edges("o2", "o3", size=(1, 1)),
        at_homes(edges("o0", "o1", "o2"), "cpu-2t", "", ""),
    ]
    texts = ["{}", "[]", "nothing", '{"edges": {}}', '{"edges": []}', '{"edges": [{"rendition": "fp32"}]}']
    texts.append('{"edges": [{"block": "o0", "input_size": "4x4"}]}')
    texts.append('{"edges": [{"block": "o0", "input_size": null}]}')
    texts.append('{"edges": [{"block": "o0", "input_size": [4.0, 4]}]}')
    texts += [f'{{"edges": [{{"block": "o0", "home": {home}}}]}}' for home in ("null", "2", '"CPU-2t"', '"cpu 2t"')]
    return cases + [{"json": one} for one in [*(msgspec.json.encode(Subnet(two)).decode() for two in refused), *texts]]


def at_homes(edges: tuple[Edge, ...], *homes: str) -> tuple[Edge, ...]:
    """``edges`` at these homes, one each."""
    return tuple(edge.on(home) for edge, home in zip(edges, homes, strict=True))


HOMES = ("cpu-1t", "cpu-16t", "cpu-4t-big", "xnnpack-2t", "openvino-1t", "qnn-1t", "nnapi-256t")
NO_HOMES = ("", "cpu", "cpu-0t", "cpu-02t", "cpu-257t", "CPU-2t", "npu-1t", "cpu-2t-", "cpu-2t-Big", "cpu-2t\n")


def home_vectors() -> dict[str, Any]:
    """Texts of homes with what they say, texts that are none, and the providers that have a short name."""
    read = [{"text": text, **msgspec.to_builtins(Home.parse(text))} for text in HOMES]
    return {"read": read, "refused": list(NO_HOMES), "providers": PROVIDERS}


def golden_vectors() -> list[dict[str, Any]]:
    """Golden inputs of a cut point of several tensors, and which elements are samples."""
    specs = (
        TensorSpec("cut_3_0", (2, 3), low=-1.5, high=2.25),
        TensorSpec("cut_3_1", (20,), low=0.1, high=0.3),
        TensorSpec("cut_3_2", (9,), dtype="int8", low=-128.0, high=127.0),
    )
    inputs = golden_inputs(CutPoint(3, specs), seed=11, batch=2)
    return [
        {
            "seed": "11",
            "cut_point": 3,
            "tensor": number,
            "batch": 2,
            "shape": list(spec.shape),
            "dtype": spec.dtype,
            "low": spec.low,
            "high": spec.high,
            "values": float32s(values.ravel().tolist()),
            "samples": float32s(sample_outputs([values])[0]),
        }
        for number, (spec, values) in enumerate(zip(specs, inputs, strict=True))
    ]


def node(operator: str, inputs: list[str], output: str, *, also: bytes = b"") -> bytes:
    """A node as a field of a graph; ``also``: further fields of it."""
    body = b"".join(protobuf.text_field(1, name) for name in inputs)
    return protobuf.bytes_field(1, body + protobuf.text_field(2, output) + protobuf.text_field(4, operator) + also)


def initializer(name: str, values: list[float], *, also: bytes = b"") -> bytes:
    """A weight as a field of a graph; ``also``: further fields of it."""
    body = protobuf.integer_field(1, len(values)) + protobuf.integer_field(2, 1)
    body += protobuf.text_field(8, name) + protobuf.bytes_field(9, struct.pack(f"<{len(values)}f", *values))
    return protobuf.bytes_field(5, body + also)


def composition_vectors() -> dict[str, Any]:
    """Two fragments, written byte by byte, the model of both, and that with an exit's branch at the end."""
    fragments = (
        node("Add", ["cut_0", "o0/w"], "cut_1") + initializer("o0/w", [0.5, -1.0, 2.0]),
        node("Mul", ["cut_1", "o1/w"], "o1/x")
        + node("Relu", ["o1/x"], "cut_2")
        + initializer("o1/w", [3.0, 1.0, -2.0]),
    )
    ends = [(TensorSpec(f"cut_{index}", (3,)),) for index in (0, 2)]
    whole = Stretch(fragments, ends[0], ends[1], ir_version=10, opset=20)
    model = compose(whole)
    branch = node("Add", ["cut_2", "x2/w"], "exit_x2") + initializer("x2/w", [1.0, 2.0, 3.0])
    outputs = (*ends[1], TensorSpec("exit_x2", (3,)))
    with_exit = compose(Stretch((*fragments, branch), ends[0], outputs, ir_version=10, opset=20))
    return {
        "ir_version": 10,
        "opset": 20,
        "input": {"name": "cut_0", "shape": [3], "dtype": "float32"},
        "output": {"name": "cut_2", "shape": [3], "dtype": "float32"},
        "fragments": [fragment.hex() for fragment in fragments],
        "model": model.hex(),
        "model_sha256": hashlib.sha256(model).hexdigest(),
        "answer": {"input": [1.0, 1.0, 1.0], "output": [4.5, 0.0, 0.0]},
        "any_size": {
            "free_axes": {"cut_0": [1], "cut_2": [1]},
            "model": compose(replace(whole, free_axes={name: frozenset({1}) for name in ("cut_0", "cut_2")})).hex(),
        },
        "exit": {
            "fragment": branch.hex(),
            "output": {"name": "exit_x2", "shape": [3], "dtype": "float32"},
            "model": with_exit.hex(),
            "answer": [5.5, 2.0, 3.0],
        },
    }


def refused_fragments() -> list[dict[str, Any]]:
    """Fragments of which no model may be made."""
    good = node("Relu", ["cut_0"], "cut_1") + initializer("o0/w", [1.0])
    elsewhere = protobuf.bytes_field(13, protobuf.text_field(1, "location") + protobuf.text_field(2, "weights.bin"))
    cases = {
        "a weight defined twice": [good, initializer("o0/w", [2.0])],
        "a weight defined twice in one fragment": [good + initializer("o0/w", [2.0])],
        "two nodes with one output": [good, node("Abs", ["cut_0"], "cut_1")],
        "a weight and a node of one name": [good, initializer("cut_1", [2.0])],
        "data in another file": [initializer("o0/w", [1.0], also=elsewhere)],
        "data said to be elsewhere": [initializer("o0/w", [1.0], also=protobuf.integer_field(14, 1))],
        "inputs of its own": [good + protobuf.bytes_field(11, protobuf.text_field(1, "cut_0"))],
        "a number for a node": [good + protobuf.integer_field(1, 5)],
        "cut short": [good[:-1]],
        "no graph at all": [b"\xff" * 12],
        "a group": [good + bytes([1 << 3 | 3])],
        **refused_nodes(),
    }
    return [{"name": name, "fragments": [one.hex() for one in fragments]} for name, fragments in cases.items()]


def refused_nodes() -> dict[str, list[bytes]]:
    """Nodes and constants that a fragment may not have (docs/bundle_format.md)."""

    def attribute(*fields: bytes, name: str = "a") -> bytes:
        return protobuf.bytes_field(5, protobuf.text_field(1, name) + b"".join(fields))

    def relu(*also: bytes) -> list[bytes]:
        return [node("Relu", ["cut_0"], "cut_1", also=b"".join(also))]

    def operator(name: str, domain: str = "") -> list[bytes]:
        return [node(name, ["cut_0"], "cut_1", also=protobuf.text_field(7, domain))]

    graph, tensor = protobuf.text_field(2, "branch"), protobuf.integer_field(2, 1) + protobuf.integer_field(1, 1)
    outside = tensor + protobuf.integer_field(14, 1)
    one = attribute(protobuf.integer_field(3, 1))
    refused = (
        "If",
        "Loop",
        "Scan",
        "SequenceMap",
        "OptionalGetElement",
        "RandomNormal",
        "ImageDecoder",
        "StringConcat",
    )
    cases = {f"operator {name}": operator(name) for name in refused}
    cases |= {
        f"domain {name}": operator("Relu", name) for name in ("com.microsoft", "ai.onnx.ml", "org.example", "a\0")
    }
    return cases | {
        "no operator": operator(""),
        "a subgraph": relu(attribute(protobuf.bytes_field(6, graph))),
        "subgraphs": relu(attribute(protobuf.bytes_field(11, graph))),
        "a sparse tensor": relu(attribute(protobuf.bytes_field(22, tensor))),
        "sparse tensors": relu(attribute(protobuf.bytes_field(23, tensor))),
        "several tensors": relu(attribute(protobuf.bytes_field(10, tensor))),
        "a type": relu(attribute(protobuf.bytes_field(14, b""))),
        "types": relu(attribute(protobuf.bytes_field(15, b""))),
        "an attribute of a function": relu(attribute(protobuf.text_field(21, "a"))),
        "a constant in another file": relu(attribute(protobuf.bytes_field(5, outside))),
        "an attribute twice": relu(one, one),
        "an attribute of two kinds": relu(attribute(protobuf.integer_field(3, 1), protobuf.text_field(4, "a"))),
        "an attribute said to be a graph": relu(attribute(protobuf.integer_field(20, 5))),
        "a tensor merged from two": relu(attribute(protobuf.bytes_field(5, tensor) * 2)),
        "a cast to strings": relu(attribute(protobuf.integer_field(3, 8), name="to")),
        "strings": [initializer("o0/w", [1.0], also=protobuf.integer_field(2, 8))],
        "complex numbers": [initializer("o0/w", [1.0], also=protobuf.integer_field(2, 14))],
        "string data": [initializer("o0/w", [1.0], also=protobuf.text_field(6, "a"))],
        "functions": [*relu(), protobuf.bytes_field(25, b"")],
        "training info": [*relu(), protobuf.bytes_field(20, b"")],
        "an operator hidden by another wire type": relu(protobuf.varint(4 << 3 | protobuf.FIXED32) + b"Relu"),
    }


def signature_vectors() -> dict[str, Any]:
    """A manifest's bytes and their signature by a key that is for these tests only."""
    data = b'{"format_version": "1.0", "tolerance": 1e-05, "name": "caf\xc3\xa9"}\n'
    encoding = serialization.Encoding.PEM
    private = KEY.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = KEY.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        path.write_bytes(private)
        signature = signatures.sign(data, private_key=path)
    return {"public_key": public.decode(), "manifest": data.hex(), "signature": signature.hex()}


def mark_vectors() -> list[dict[str, Any]]:
    """High-water marks as the store keeps them, byte for byte, and damaged records."""
    marks = {
        "of no address": Mark("tiny", 1, "0123456789abcdef" * 4),
        "of two addresses": Mark("A.b_c-9", 2**53 + 1, "f" * 64, ("a" * 64, "b" * 64)),
        "below zero": Mark("x", -3, "0" * 64),
    }
    cases: list[dict[str, Any]] = [
        {
            "name": name,
            "mark": {**msgspec.to_builtins(mark), "version": str(mark.version)},
            "record": encode_mark(mark).hex(),
            "outcome": "whole",
        }
        for name, mark in marks.items()
    ]
    whole = encode_mark(marks["of two addresses"])
    damaged = {
        "nothing": b"",
        "cut short": whole[:-20],
        "another version": whole.replace(b'"version":9', b'"version":8', 1),
        "another digest of its own": whole[:-4] + b'0"}\n',
        "no digest of a manifest": encode_mark(Mark("x", 1, "f" * 63)),
        "not UTF-8": whole.replace(b"A.b", b"A\xffb", 1),
    }
    return cases + [{"name": name, "record": data.hex(), "outcome": "damaged"} for name, data in damaged.items()]


def preprocessing_vectors() -> dict[str, Any]:
    """Pixels and what is made of them, every step rounded to float32."""
    preprocessing = Preprocessing(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    random = SplitMix64(9)
    pixels = np.array([random.below(256) for _ in range(2 * 2 * 3 * 3)], dtype=np.uint8).reshape(2, 2, 3, 3)
    prepared = prepare(pixels, preprocessing, input_shape=(3, 2, 3))
    return {
        "scale": preprocessing.scale,
        "mean": preprocessing.mean,
        "std": preprocessing.std,
        "images": [{"height": 2, "width": 3, "channels": 3, "pixels": image.tobytes().hex()} for image in pixels],
        "prepared": float32s(prepared.ravel().tolist()),
    }


def confidence_vectors() -> list[dict[str, Any]]:
    """Logits and how sure they are, to a relative error of 1e-12: exponentials differ in their last bits."""
    rows = ([0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [1e4, -1e4], [-1e30, -1e30], [88.5, 89.25, 87.125, 3.0], [5.0])
    return [
        {"logits": row, "confidence": float(confidence(np.array([row], dtype=np.float32))[0])}
        for row in (np.float32(one).tolist() for one in rows)
    ]


PLANS: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = (
    ("o0 o1 o2 o3", ()),
    ("o0@int8 m1-3 o3", ()),
    ("m0-2 s2 o3", ()),
    ("o0 o1 o2 o3", (("x1-pooled", 0.6), ("x3-pooled", 0.53))),
    ("o0@int8 o1 s2 o3", (("x1-pooled", 0.65), ("x2-flat", 0.62), ("x3-pooled", 0.47))),
    ("m0-2 o2 o3", (("x2-flat", 0.85),)),
    ("o0 m1-3 o3", (("x1-pooled", 0.0),)),
    ("o0 o1 o2 o3", (("x1-pooled", 1.1), ("x2-flat", 1.1))),
    ("4x4: o0 o1 o2 o3", ()),
    ("1x1: m0-2 o2 o3", ()),
    ("1x1: o0 m1-3 o3", (("x1-pooled", 0.6),)),
    ("4x4: o0 o1 o2 o3", (("x1-pooled", 0.52), ("x3-pooled", 0.5))),
)
REFUSED_PLANS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("3x3: o0 o1 o2 o3", ()),
    ("2x2: o0 o1 o2 o3", ()),  # the model's own, which is written as none
    ("4x4: o0@int8 o1 o2 o3", ()),
    ("4x4: m0-2 s2 o3", ()),
    ("4x4: o0 o1 o2 o3", ("x2-flat",)),
    ("1x1: m0-2 o2 o3", ("x1-pooled",)),
)
PLAN_SEED, PLAN_BATCH = 77, 12


def bundle_vectors(reference: ReferenceBundle, manifest: Manifest) -> dict[str, Any]:
    """What is in the reference bundle and what it answers, computed without any runtime."""
    supernet = manifest.supernet()

    def macs(edge: Edge) -> float:
        return float(supernet.block(edge.block).macs)

    golden = {
        f"{'exit' if owner in EXITS else 'block'} {Edge(owner, rendition)}": reference.golden(owner, rendition)
        for owner, rendition in reference.fragments
    }
    golden["the original path"] = reference.golden_original()
    for one in manifest.input_sizes:
        golden[f"the original path at {size_text(one.size)}"] = reference.golden_original(one.size[0])
    return {
        "folder": REFERENCE_BUNDLE,
        "digest": hashlib.sha256(encode_manifest(manifest)).hexdigest(),
        "architecture_count": str(architecture_count(supernet)),
        "subnet_count": str(subnet_count(supernet)),
        "samples": {
            "seed": "3",
            "subnets": [str(one) for one in sample_uniformly(supernet, count=6, random=SplitMix64(3))],
        },
        "cheapest_by_macs": [str(one) for _, one in k_cheapest(supernet, macs, k=6)],
        "argmax": {name: argmax(outputs[-1]) for name, outputs in golden.items()},
        "plans": {
            "seed": str(PLAN_SEED),
            "batch": PLAN_BATCH,
            "tolerance": 1e-4,
            "cases": [plan_case(reference, supernet, subnet, exits) for subnet, exits in PLANS],
            "refused": [{"subnet": subnet, "exits": exits} for subnet, exits in REFUSED_PLANS],
        },
    }


def argmax(output: Values) -> list[int]:
    """The place of the highest value of each sample."""
    return [int(one) for one in output.reshape(len(output), -1).argmax(axis=1)]


def plan_case(
    reference: ReferenceBundle, supernet: Supernet, subnet: str, exits: tuple[tuple[str, float], ...]
) -> dict[str, Any]:
    """What a plan answers, sample by sample; no confidence is so near to a threshold that rounding decides."""
    size, _, blocks = subnet.rpartition(": ")
    side = int(size.partition("x")[0]) if size else SIDE
    values = reference.golden_inputs(0, seed=PLAN_SEED, batch=PLAN_BATCH, side=side)
    answers: list[Values | None] = [None] * PLAN_BATCH
    sources = ["subnet"] * PLAN_BATCH
    at = {EXITS[name]: (name, threshold) for name, threshold in exits}
    for word in blocks.split():
        block, _, rendition = word.partition("@")
        values = reference.run(block, rendition or "fp32", values)
        if supernet.block(block).end in at:
            name, threshold = at[supernet.block(block).end]
            [logits] = reference.run(name, "fp32", values)
            sure = confidence(logits)
            assert np.abs(sure - threshold).min() > 1e-3, (subnet, name, sure.tolist())
            for sample in np.flatnonzero(sure >= threshold):
                if answers[sample] is None:
                    answers[sample], sources[sample] = logits[sample], f"exit {name}"
    output = np.array([own if own is not None else last for own, last in zip(answers, values[-1], strict=True)])
    return {
        "subnet": subnet,
        "exits": [{"exit": name, "threshold": threshold} for name, threshold in exits],
        "source": sources,
        "labels": [CLASSES[index] for index in argmax(output)],
        "output": [[round(value, 6) for value in row] for row in output.tolist()],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("vectors.json"))
