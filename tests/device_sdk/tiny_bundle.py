"""A tiny real bundle: images whose brightest colour is their class, convolutions of random weights, a fitted head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.bundles.manifest import Manifest, Metrics, Onnx, Provenance, SelfTest, Task, encode_manifest
from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.signing import signatures
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, Rendition, TensorSpec

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
            (self.folder / "manifest.sig").write_bytes(signatures.sign(data, private_key=self.private_key))


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
            out = output_name(block, end) if number == len(nodes) - 1 else f"{block}/{number}"
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
        names = (start.tensors[0].name, output_name(block, end.index))
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


def output_name(block: str, end: int) -> str:
    return f"exit_{block}" if block.startswith("x") else f"cut_{end}"


_SPANS = {"o0": (0, 1), "o1": (1, 2), "o2": (2, 3), "o3": (3, 4), "o4": (4, 5)}
_SPANS |= {"s2": (2, 3), "m1-3": (1, 3), "m2-4": (2, 4), "m1-4": (1, 4)}
_EXITS = {"x1-pooled": 1, "x2-pooled": 2, "x2-untrained": 2, "x3-pooled": 3}
_PREPROCESSING = Preprocessing(scale=1 / 255, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def write_tiny_bundle(folder: Path, private_key: Path) -> None:
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
    (folder / "manifest.sig").write_bytes(signatures.sign(data, private_key=private_key))


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
