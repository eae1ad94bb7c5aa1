"""Small supernets for the tests of the graph and of what works on it, and a tiny real bundle for all others.

Longer than most files: without ``__init__.py`` in tests/, a conftest.py is the one place that test files share.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from device_sdk.bundles import signing
from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.golden import golden_inputs, sample_outputs
from device_sdk.bundles.manifest import Manifest, Metrics, Onnx, Provenance, SelfTest, Task, encode_manifest
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.profiling.memory import device_identity
from device_sdk.profiling.profile import MeasuredEdge, MeasuredExit, MeasuredSubnet, Profile
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.device_state import DeviceState
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, Rendition, TensorSpec
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, ExitChoice, Subnet
from device_sdk.supernet.supernet import Supernet

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

SupernetBuilder = Callable[..., Supernet]


def _rendition(name: str) -> Rendition:
    return Rendition(name, runtime="none", blob="0" * 64, size_bytes=1, golden=Golden((), 0.0))


def _build(
    length: int,
    spans: Iterable[tuple[int, int]] = (),
    *,
    int8: Iterable[str] = (),
    tensors: int = 1,
    values: int = 4,
) -> Supernet:
    """Originals o0 … and merged blocks m<start>_<end>; ``int8``: ids with a second rendition."""
    int8 = set(int8)

    def block(name: str, start: int, end: int) -> Block:
        renditions = (_rendition("fp32"), _rendition("int8")) if name in int8 else (_rendition("fp32"),)
        kind = "original" if end == start + 1 else "merged"
        return Block(name, start, end, kind, parameters=1, macs=1, renditions=renditions)

    cuts = [
        CutPoint(index, tuple(TensorSpec(f"cut_{index}_{n}", (values,)) for n in range(tensors)))
        for index in range(length + 1)
    ]
    blocks = [block(f"o{index}", index, index + 1) for index in range(length)]
    blocks += [block(f"m{start}_{end}", start, end) for start, end in spans]
    return Supernet(cuts, blocks)


@pytest.fixture(scope="session")
def build_supernet() -> SupernetBuilder:
    """Builds a supernet of ``length`` originals and merged ``spans`` (see ``_build``)."""
    return _build


@pytest.fixture(scope="session")
def elastic_supernet() -> SupernetBuilder:
    """Builds the supernet of ``length`` originals in which every span of 2 and 3 has a merged block."""

    def build(length: int, **settings: int) -> Supernet:
        spans = [(i, i + n) for i in range(length) for n in (2, 3) if i + n <= length]
        return _build(length, spans, **settings)

    return build


@st.composite
def _supernets(draw: st.DrawFn, max_length: int = 5) -> Supernet:
    length = draw(st.integers(1, max_length))
    possible = [(i, j) for i in range(length) for j in range(i + 2, length + 1)]
    spans = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    names = [f"o{i}" for i in range(length)] + [f"m{i}_{j}" for i, j in spans]
    return _build(length, spans, int8=draw(st.lists(st.sampled_from(names), unique=True, max_size=4)))


@st.composite
def _priced(draw: st.DrawFn) -> tuple[Supernet, CostModel]:
    supernet = draw(_supernets())
    eighths, sizes = st.integers(3, 80), st.integers(0, 20)  # latencies in eighths of 1 ms add up exactly
    costs = {}
    for edge in supernet.edges:
        latency_ms = draw(eighths) / 8
        costs[edge] = EdgeCost(latency_ms, latency_ms, draw(sizes) * 10**6, draw(sizes) * 10**6)
    offset_ms = draw(st.sampled_from([0.0, 0.5, -0.125]))
    return supernet, CostModel(costs, scale=draw(st.sampled_from([1.0, 0.5, 2.0])), offset_ms=offset_ms)


@pytest.fixture(scope="session")
def supernets() -> st.SearchStrategy[Supernet]:
    """Random supernets: a chain of originals, random merged spans, one or two renditions per block."""
    return _supernets()


@pytest.fixture(scope="session")
def priced_supernets() -> st.SearchStrategy[tuple[Supernet, CostModel]]:
    """Random supernets with a random cost model."""
    return _priced()


@pytest.fixture(scope="session")
def all_subnets() -> Callable[[Supernet], list[Subnet]]:
    """Every subnet by brute force: for every choice of cut points, every choice of edges between them."""

    def edges_between(supernet: Supernet, start: int, end: int) -> list[Edge]:
        return [
            Edge(block.id, rendition.name)
            for block in supernet.blocks
            if (block.start, block.end) == (start, end)
            for rendition in block.renditions
        ]

    def paths(supernet: Supernet) -> Iterator[Subnet]:
        inner = range(1, supernet.output_index)
        for size in range(supernet.output_index):
            for chosen in combinations(inner, size):
                cuts = (0, *chosen, supernet.output_index)
                steps = [edges_between(supernet, *pair) for pair in pairwise(cuts)]
                yield from (Subnet(edges) for edges in product(*steps))

    return lambda supernet: list(paths(supernet))


@pytest.fixture(scope="session")
def uniform_costs() -> Callable[..., CostModel]:
    """A cost model in which an original takes 1 ms and a merged block of span n takes 0.5 · n + 0.25 ms."""

    def build(supernet: Supernet, **settings: float) -> CostModel:
        costs = {}
        for block in supernet.blocks:
            span = block.end - block.start
            latency_ms = 1.0 if span == 1 else 0.5 * span + 0.25
            for rendition in block.renditions:
                latency = latency_ms if rendition.name == "fp32" else latency_ms * 0.75
                costs[Edge(block.id, rendition.name)] = EdgeCost(latency, latency, 1_000_000, 500_000)
        return CostModel(costs, **settings)

    return build


# A tiny real bundle: images whose brightest colour is their class, convolutions of random weights, a fitted head

CLASSES = ("blue", "green", "red")  # sorted, as folders are
OPSET, IR_VERSION = 20, 10
SIDE, CHANNELS = 20, 16
GOLDEN_SEED, GOLDEN_BATCH = 7, 2


@dataclass(frozen=True)
class TinyBundle:
    """A signed bundle of five originals, merged and shrunk blocks, an int8 rendition, a shared weight and exits.

    ``images`` uint8 [count, SIDE, SIDE, 3] with ``labels`` [count]: the full model gets all of them right.
    """

    folder: Path
    private_key: Path
    public_key: Path
    images: np.ndarray
    labels: np.ndarray

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    def blob(self, block: str) -> Path:
        """The file of a block's first rendition."""
        found = next(one for one in json.loads(self.manifest_path.read_bytes())["blocks"] if one["id"] == block)
        return self.folder / "blobs" / found["renditions"][0]["blob"]

    def edit(self, change: Callable[[dict[str, Any]], None], *, sign: bool = False) -> None:
        """Change the manifest as a program that writes JSON would, and sign it again if asked to."""
        manifest = json.loads(self.manifest_path.read_bytes())
        change(manifest)
        data = json.dumps(manifest).encode()
        self.manifest_path.write_bytes(data)
        (self.folder / "manifest.sig").unlink(missing_ok=True)
        if sign:
            (self.folder / "manifest.sig").write_bytes(signing.sign(data, private_key=self.private_key))


def draw_images(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images uint8 [count, SIDE, SIDE, 3], one colour a little brighter, and which one it is."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % len(CLASSES)
    pixels = random.integers(0, 200, size=(count, SIDE, SIDE, 3))
    for label in range(len(CLASSES)):
        pixels[labels == label, :, :, 2 - label] += 25
    return pixels.astype(np.uint8), labels.astype(np.int64)


@dataclass
class _Fragments:
    """Writes fragments with the onnx package, and runs each alone with nothing of ours in between."""

    folder: Path
    shared: dict[str, np.ndarray] = field(default_factory=dict)  # initializers by name
    own: dict[tuple[str, str], bytes] = field(default_factory=dict)  # fragments by block and rendition

    def add(
        self,
        block: str,
        start: int,
        end: int,
        nodes: Sequence[tuple[str, Sequence[str], Mapping[str, Any]]],
        weights: Mapping[str, np.ndarray],
        *,
        rendition: str = "fp32",
    ) -> None:
        """A chain of ``nodes`` (operator, further inputs, attributes) from cut point ``start`` to ``end``."""
        from onnx import GraphProto, helper, numpy_helper

        graph, live = GraphProto(), f"cut_{start}"
        for number, (operator, others, attributes) in enumerate(nodes):
            out = _output(block, end) if number == len(nodes) - 1 else f"{block}/{number}"
            inputs = [live, *(name if name in self.shared else f"{block}/{name}" for name in others)]
            graph.node.append(helper.make_node(operator, inputs, [out], name=f"{block}/{number}", **attributes))
            live = out
        for name, value in weights.items():
            graph.initializer.append(numpy_helper.from_array(value, f"{block}/{name}"))
        self.own[block, rendition] = graph.SerializeToString()

    def add_conv(self, block: str, start: int, end: int, weight: np.ndarray, *, rendition: str = "fp32") -> None:
        """Convolution with the shared bias, then ReLU."""
        conv = ("Conv", ("weight", "shared/bias"), {"pads": [weight.shape[2] // 2] * 4})
        self.add(block, start, end, [conv, ("Relu", (), {})], {"weight": weight}, rendition=rendition)

    def add_head(self, block: str, start: int, end: int, head: np.ndarray, bias: np.ndarray) -> None:
        """Mean over the image, then a linear layer."""
        pooled = [("GlobalAveragePool", (), {}), ("Flatten", (), {}), ("Gemm", ("weight", "bias"), {})]
        self.add(block, start, end, pooled, {"weight": head, "bias": bias})

    def run(self, block: str, rendition: str, start: CutPoint, end: CutPoint, inputs: np.ndarray) -> np.ndarray:
        """The fragment alone, through the onnx package's own way of making a model."""
        import onnxruntime
        from onnx import GraphProto, TensorProto, helper, numpy_helper

        fragment = GraphProto.FromString(self.own[block, rendition])
        names = (start.tensors[0].name, _output(block, end.index))
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *cut.tensors[0].shape])
            for name, cut in zip(names, (start, end), strict=True)
        ]
        shared = [numpy_helper.from_array(value, name) for name, value in self.shared.items()]
        graph = helper.make_graph(fragment.node, block, ends[:1], ends[1:], [*fragment.initializer, *shared])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return session.run(None, {start.tensors[0].name: inputs})[0]

    def store(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs" / name).write_bytes(data)
        return name


def _output(block: str, end: int) -> str:
    return f"exit_{block}" if block.startswith("x") else f"cut_{end}"


_SPANS = {"o0": (0, 1), "o1": (1, 2), "o2": (2, 3), "o3": (3, 4), "o4": (4, 5)}
_SPANS |= {"s2": (2, 3), "m1-3": (1, 3), "m2-4": (2, 4), "m1-4": (1, 4)}
_EXITS = {"x1-pooled": 1, "x2-pooled": 2, "x2-untrained": 2, "x3-pooled": 3}
_PREPROCESSING = Preprocessing(scale=1 / 255, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def _write_tiny_bundle(folder: Path, private_key: Path) -> None:
    (folder / "blobs").mkdir(parents=True)
    fragments, cuts = _Fragments(folder), _cut_points()
    _add_blocks(fragments, cuts)
    shared = fragments.store(_initializers_only(fragments.shared))
    original = golden_inputs(cuts[0], seed=GOLDEN_SEED, batch=GOLDEN_BATCH)[0]
    for block in ("o0", "o1", "o2", "o3", "o4"):
        original = fragments.run(block, "fp32", *(cuts[index] for index in _SPANS[block]), original)
    manifest = Manifest(
        format_version="1.0",
        name="tiny",
        version=1,
        task=Task(kind="classification", class_names=CLASSES),
        preprocessing=_PREPROCESSING,
        cut_points=cuts,
        blocks=tuple(_described(fragments, cuts, block, shared) for block in _SPANS),
        exits=tuple(_described_exit(fragments, cuts, exit_) for exit_ in _EXITS),
        onnx=Onnx(ir_version=IR_VERSION, opset=OPSET),
        self_test=SelfTest(
            seed=GOLDEN_SEED, batch=GOLDEN_BATCH, original=Golden(sample_outputs([original]), tolerance=1e-4)
        ),
        metrics=Metrics("none", 0, 0.0, (), 0.0, 0, 0),
        provenance=Provenance("tiny", "made by the tests", None, None, "none", {"seed": 3}, {}),
    )
    data = encode_manifest(manifest)
    (folder / "manifest.json").write_bytes(data)
    (folder / "manifest.sig").write_bytes(signing.sign(data, private_key=private_key))


def _cut_points() -> tuple[CutPoint, ...]:
    image = TensorSpec("cut_0", (3, SIDE, SIDE), low=-2.0, high=2.0)
    inner = [TensorSpec(f"cut_{index}", (CHANNELS, SIDE, SIDE)) for index in range(1, 5)]
    logits = TensorSpec("cut_5", (len(CLASSES),))
    return tuple(CutPoint(index, (spec,)) for index, spec in enumerate([image, *inner, logits]))


def _add_blocks(fragments: _Fragments, cuts: Sequence[CutPoint]) -> None:
    random = np.random.default_rng(3)

    def weight(inputs: int, side: int) -> np.ndarray:
        spread = np.sqrt(2 / (inputs * side * side))
        return (spread * random.standard_normal((CHANNELS, inputs, side, side))).astype(np.float32)

    fragments.shared["shared/bias"] = (0.1 * random.standard_normal(CHANNELS)).astype(np.float32)
    second = weight(CHANNELS, 3)
    fragments.add_conv("o0", 0, 1, weight(3, 3))
    fragments.add_conv("o1", 1, 2, second)
    fragments.add_conv("o1", 1, 2, np.round(second * 16) / np.float32(16), rendition="int8")
    for block in ("o2", "o3"):
        fragments.add_conv(block, *_SPANS[block], weight(CHANNELS, 3))
    for block in ("s2", "m1-3", "m2-4", "m1-4"):
        fragments.add_conv(block, *_SPANS[block], weight(CHANNELS, 1))
    fragments.add_head("o4", 4, 5, *_fitted_head(fragments, cuts, 4))
    for exit_, position in _EXITS.items():
        head, bias = _fitted_head(fragments, cuts, position)
        sign = -1 if exit_ == "x2-untrained" else 1
        fragments.add_head(exit_, position, 5, sign * 8 * head, 8 * bias)  # as sure as they are right


def _fitted_head(fragments: _Fragments, cuts: Sequence[CutPoint], position: int) -> tuple[np.ndarray, np.ndarray]:
    """The linear classifier on the pooled features at a cut point that is best on images of its own."""
    images, labels = draw_images(90, seed=1)
    features = prepare(images, _PREPROCESSING, input_shape=(3, SIDE, SIDE))
    for block in ("o0", "o1", "o2", "o3")[:position]:
        features = fragments.run(block, "fp32", *(cuts[index] for index in _SPANS[block]), features)
    design = np.concatenate([features.mean(axis=(2, 3)), np.ones((len(labels), 1))], axis=1)
    solution = np.linalg.lstsq(design, np.eye(len(CLASSES))[labels], rcond=None)[0].astype(np.float32)
    return solution[:-1], solution[-1]


def _described(fragments: _Fragments, cuts: Sequence[CutPoint], block: str, shared: str) -> Block:
    start, end = _SPANS[block]
    kind = {"o": "original", "m": "merged", "s": "shrunk"}[block[0]]
    needs = () if block == "o4" else (shared,)
    renditions = _renditions(fragments, block, cuts[start], cuts[end], needs)
    return Block(block, start, end, kind, parameters=1, macs=1, renditions=renditions)


def _described_exit(fragments: _Fragments, cuts: Sequence[CutPoint], exit_: str) -> Exit:
    position, branch = _EXITS[exit_], exit_.partition("-")[2]
    renditions = _renditions(fragments, exit_, cuts[position], cuts[-1], ())
    accuracy = 0.3 if branch == "untrained" else 0.7 + position / 20
    return Exit(exit_, position, branch, parameters=51, macs=1, renditions=renditions, accuracy=accuracy)


def _renditions(
    fragments: _Fragments, block: str, start: CutPoint, end: CutPoint, needs: tuple[str, ...]
) -> tuple[Rendition, ...]:
    inputs = golden_inputs(start, seed=GOLDEN_SEED, batch=GOLDEN_BATCH)[0]
    renditions = []
    for name in [rendition for owner, rendition in fragments.own if owner == block]:
        data = fragments.own[block, name]
        output = fragments.run(block, name, start, end, inputs)
        golden = Golden(sample_outputs([output]), tolerance=1e-4)
        renditions.append(Rendition(name, "onnxruntime", fragments.store(data), len(data), golden, needs, OPSET))
    return tuple(renditions)


def _initializers_only(weights: Mapping[str, np.ndarray]) -> bytes:
    from onnx import GraphProto, numpy_helper

    return GraphProto(
        initializer=[numpy_helper.from_array(value, name) for name, value in weights.items()]
    ).SerializeToString()


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> TinyBundle:
    """The tiny bundle; never alter it (``own_bundle`` is a copy)."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("tiny")
    private, public = folder / "key", folder / "key.pub"
    for path, data in zip((private, public), signing.new_key_pair(), strict=True):
        path.write_bytes(data)
    _write_tiny_bundle(folder / "bundle", private)
    return TinyBundle(folder / "bundle", private, public, *draw_images(60, seed=2))


@pytest.fixture
def own_bundle(tiny_bundle: TinyBundle, tmp_path: Path) -> TinyBundle:
    """A copy of the tiny bundle that a test may alter."""
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle.folder, folder)
    return TinyBundle(folder, tiny_bundle.private_key, tiny_bundle.public_key, tiny_bundle.images, tiny_bundle.labels)


@pytest.fixture(scope="session")
def bundle(tiny_bundle: TinyBundle) -> Bundle:
    """The tiny bundle, opened."""
    return Bundle.open(tiny_bundle.folder)


@pytest.fixture(scope="session")
def runtime() -> OnnxRuntime:
    """ONNX Runtime on one thread."""
    return OnnxRuntime(threads=1)


@pytest.fixture(scope="session")
def slow_profile(bundle: Bundle, runtime: OnnxRuntime) -> Profile:
    """A profile of a device a thousand times slower than any: what it allows is always measured to fit.

    A 3×3 convolution takes 100 ms and 4 MB, its int8 rendition half; a 1×1 convolution 30 ms and 1 MB; the ends
    10 ms and 1 MB. Working sets are 1 MB.
    """
    slow, quick = {"o1": 100.0, "o2": 100.0, "o3": 100.0}, {"o0": 10.0, "o4": 10.0}
    costs = {}
    for edge in bundle.supernet.edges:
        latency_ms = {**slow, **quick}.get(edge.block, 30.0) * (0.5 if edge.rendition == "int8" else 1.0)
        resident = int((4e6 if edge.block in slow else 1e6) * (0.5 if edge.rendition == "int8" else 1.0))
        costs[edge] = EdgeCost(latency_ms, latency_ms, resident, 1_000_000)
    original = bundle.supernet.original
    original_ms = CostModel(costs).latency_ms(original)
    return Profile(
        bundle=bundle.digest,
        device=device_identity(),
        runtime=runtime.identity,
        batch=1,
        created="2026-01-01T00:00:00+00:00",
        edges=tuple(MeasuredEdge(edge, cost) for edge, cost in costs.items()),
        scale=1.0,
        offset_ms=0.0,
        fitted=(MeasuredSubnet(original, original_ms, original_ms),),
        original_ms=original_ms,
        exits=tuple(
            MeasuredExit(exit_.id, "fp32", EdgeCost(1.0, 1.0, 10_000, 1_000)) for exit_ in bundle.supernet.exits
        ),
    )


@pytest.fixture
def slow_state(slow_profile: Profile, bundle: Bundle, runtime: OnnxRuntime, tmp_path: Path) -> Path:
    """A state folder in which the tiny bundle has the slow profile and has passed its self-test."""
    folder = tmp_path / "state"
    state = DeviceState(folder, bundle, runtime)
    state.save_profile(slow_profile)
    state.remember_self_test()
    return folder


# Heavy bundles: weights that are much larger than all that happens besides

_HEAVY_SIDE = 4


@dataclass(frozen=True)
class _HeavyBlock:
    """A 3×3 convolution with ReLU from ``inputs`` to ``outputs`` channels, or a classifier of their means."""

    name: str
    start: int
    end: int
    inputs: int
    outputs: int
    classifies: bool

    def fragment(self, seed: int) -> bytes:
        from onnx import GraphProto, helper, numpy_helper

        random = np.random.default_rng(seed)
        begin, end = f"cut_{self.start}", _output(self.name, self.end)
        inner, weight, axes = (f"{self.name}/{part}" for part in ("inner", "weight", "axes"))
        if self.classifies:
            values = {
                weight: random.standard_normal((self.inputs, self.outputs), dtype=np.float32),
                axes: np.array([2, 3], np.int64),
            }
            nodes = [
                helper.make_node("ReduceMean", [begin, axes], [inner], keepdims=0),
                helper.make_node("MatMul", [inner, weight], [end]),
            ]
        else:
            shape, spread = (self.outputs, self.inputs, 3, 3), np.float32(1 / np.sqrt(9 * self.inputs / 2))
            values = {weight: random.standard_normal(shape, dtype=np.float32) * spread}
            nodes = [
                helper.make_node("Conv", [begin, weight], [inner], pads=[1] * 4),
                helper.make_node("Relu", [inner], [end]),
            ]
        tensors = [numpy_helper.from_array(value, name) for name, value in values.items()]
        return GraphProto(node=nodes, initializer=tensors).SerializeToString()


def _build_heavy(
    folder: Path,
    *,
    blocks: int,
    channels: int,
    colours: int | None = None,
    merged: Iterable[tuple[int, int]] = (),
    exits: Iterable[int] = (),
) -> Bundle:
    """``blocks`` convolutions of ``channels``² · 36 bytes each and a classifier for three classes.

    With ``colours`` the first one takes images of so many; ``merged``: spans that one convolution replaces; ``exits``:
    positions of classifiers. Golden outputs are those of ONNX Runtime.
    """
    (folder / "blobs").mkdir(parents=True)
    width = [colours or channels, *[channels] * blocks]
    cuts = [CutPoint(n, (TensorSpec(f"cut_{n}", (width[n], _HEAVY_SIDE, _HEAVY_SIDE)),)) for n in range(blocks + 1)]
    cuts.append(CutPoint(blocks + 1, (TensorSpec(f"cut_{blocks + 1}", (3,)),)))
    spans = [(f"o{n}", n, n + 1) for n in range(blocks)] + [(f"m{start}-{end}", start, end) for start, end in merged]
    heavy = [_HeavyBlock(name, start, end, width[start], channels, False) for name, start, end in spans]
    heads = [(f"o{blocks}", blocks), *((f"x{at}", at) for at in exits)]
    heavy += [_HeavyBlock(name, at, blocks + 1, channels, 3, True) for name, at in heads]
    renditions = {}
    for seed, one in enumerate(heavy):
        data = one.fragment(seed)
        name = hashlib.sha256(data).hexdigest()
        (folder / "blobs" / name).write_bytes(data)
        renditions[one] = (Rendition("fp32", "onnxruntime", name, len(data), Golden((), 0.0), opset=OPSET),)
    described = tuple(
        Block(one.name, one.start, one.end, "merged" if one.name[0] == "m" else "original", 1, 1, renditions[one])
        for one in heavy
        if one.name[0] != "x"
    )
    manifest = Manifest(
        format_version="1.0",
        name="heavy",
        version=1,
        task=Task(kind="classification", class_names=CLASSES),
        preprocessing=Preprocessing(scale=1 / 255, mean=(0.0,) * 3, std=(1.0,) * 3),
        cut_points=tuple(cuts),
        blocks=described,
        exits=tuple(
            Exit(one.name, one.start, "mean", 1, 1, renditions[one], accuracy=0.5)
            for one in heavy
            if one.name[0] == "x"
        ),
        onnx=Onnx(ir_version=IR_VERSION, opset=OPSET),
        self_test=SelfTest(seed=GOLDEN_SEED, batch=GOLDEN_BATCH, original=Golden((), 0.0)),
        metrics=Metrics("none", 0, 0.0, (), 0.0, 0, 0),
        provenance=Provenance("heavy", "made by the tests", None, None, "none", {}, {}),
    )
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    (folder / "manifest.json").write_bytes(encode_manifest(_with_golden_outputs(Bundle.open(folder))))
    return Bundle.open(folder)


def _with_golden_outputs(bundle: Bundle) -> Manifest:
    runtime, manifest = OnnxRuntime(threads=1), bundle.manifest

    def golden(start: int, edges: Sequence[Edge], choice: ExitChoice | None = None) -> Golden:
        inputs = golden_inputs(manifest.cut_points[start], seed=GOLDEN_SEED, batch=GOLDEN_BATCH)
        outputs = runtime.load(bundle.stretch(edges, choice)).run(inputs)
        return Golden(sample_outputs(outputs), tolerance=1e-3)

    def tested(owner: Block | Exit, wanted: Golden) -> Block | Exit:
        return replace(owner, renditions=(replace(owner.renditions[0], golden=wanted),))

    original = golden(0, bundle.supernet.original.edges)
    return replace(
        manifest,
        blocks=tuple(tested(one, golden(one.start, [Edge(one.id)])) for one in manifest.blocks),
        exits=tuple(tested(one, golden(one.position, (), ExitChoice(one.id, 1.0))) for one in manifest.exits),
        self_test=replace(manifest.self_test, original=original),
    )


@pytest.fixture(scope="session")
def build_heavy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """Builds a bundle of ``blocks`` convolutions of ``channels``, in a folder of its own (see ``_build_heavy``)."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    return lambda **sizes: _build_heavy(tmp_path_factory.mktemp("heavy") / "bundle", **sizes)


@pytest.fixture(scope="session")
def heavy_bundle(build_heavy: Callable[..., Bundle]) -> Bundle:
    """42 MB of weights in fourteen blocks of 3 MB."""
    return build_heavy(blocks=14, channels=288)


@pytest.fixture(scope="session")
def elastic_heavy(build_heavy: Callable[..., Bundle]) -> Bundle:
    """7 MB: a small convolution, five of 0.9 MB and three merged ones that replace all of these or some, two exits.

    Under a cap of 10 MB the original runs in pages, and subnets of one or two large blocks do not.
    """
    return build_heavy(blocks=6, channels=160, colours=3, merged=[(1, 3), (3, 6), (1, 6)], exits=[1, 3])
