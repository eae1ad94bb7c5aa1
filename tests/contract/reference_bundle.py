"""A tiny signed bundle whose answers are known without any runtime: what they must be is computed here, in float64.

Every part of the format is in it: merged and shrunk blocks, a cut point of two tensors, two renditions, shared
weights, exits, input sizes. Weights are multiples of 1/64, so that sums are exact but for the last few bits, and the
files come out the same on every machine. With a head for maps, it is a segmenter of a few pixels, without exits.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_sdk.bundles.manifest import Manifest, Metrics, Onnx, Provenance, SelfTest, Task, encode_manifest
from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.fragments import protobuf
from device_sdk.random_source import SplitMix64
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, InputSize, Rendition, TensorSpec

Values = npt.NDArray[Any]

CLASSES = ("blue", "green", "red")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # signs both; for tests only
GOLDEN_SEED, GOLDEN_BATCH, TOLERANCE = 7, 2, 1e-4
SIDE, CHANNELS = 2, 4
OTHER_SIDES = (1, 4)  # further input sizes, at which all run but these:
ONE_SIZE = {("o0", "int8"), ("s2", "fp32"), ("x2-flat", "fp32")}
IR_VERSION, OPSET = 10, 20
KINDS: Mapping[str, str] = {"o": "original", "m": "merged", "s": "shrunk"}
SPANS = {"o0": (0, 1), "o1": (1, 2), "o2": (2, 3), "o3": (3, 4), "m0-2": (0, 2), "m1-3": (1, 3), "s2": (2, 3)}
EXITS = {"x1-pooled": 1, "x2-flat": 2, "x3-pooled": 3}


@dataclass(frozen=True)
class Node:
    """One operator of a fragment: only such that need no attributes."""

    operator: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Fragment:
    """What a block computes."""

    nodes: tuple[Node, ...]
    weights: Mapping[str, Values] = field(default_factory=dict)

    def serialized(self) -> bytes:
        """As a ``GraphProto``."""
        return b"".join(map(_node, self.nodes)) + b"".join(_initializer(*one) for one in self.weights.items())

    def run(self, known: Mapping[str, Values]) -> dict[str, Values]:
        """All values after all nodes, in float64; ``known`` holds inputs and shared weights."""
        values: dict[str, Values] = {**known, **self.weights}
        for node in self.nodes:
            values[node.output] = _OPERATORS[node.operator](*(values[name] for name in node.inputs))
        return values


_OPERATORS = {
    "Conv": lambda x, weight, bias: np.einsum("bihw,oi->bohw", x, weight[:, :, 0, 0]) + bias[:, None, None],
    "Relu": lambda x: np.maximum(x, 0.0),
    "GlobalAveragePool": lambda x: x.mean(axis=(2, 3), keepdims=True),
    "Flatten": lambda x: x.reshape(len(x), -1),
    "Gemm": lambda x, weight, bias: np.einsum("bi,io->bo", x, weight) + bias,
    "Add": lambda one, other: one + other,
}


def _node(node: Node) -> bytes:
    body = b"".join(protobuf.text_field(1, name) for name in node.inputs)
    return protobuf.bytes_field(1, body + protobuf.text_field(2, node.output) + protobuf.text_field(4, node.operator))


def _initializer(name: str, values: Values) -> bytes:
    body = b"".join(protobuf.integer_field(1, extent) for extent in values.shape) + protobuf.integer_field(2, 1)
    data = struct.pack(f"<{values.size}f", *values.ravel())
    return protobuf.bytes_field(5, body + protobuf.text_field(8, name) + protobuf.bytes_field(9, data))


class ReferenceBundle:
    """The bundle's parts, and what they answer. ``maps``: as a segmenter, without exits."""

    def __init__(self, *, maps: bool = False) -> None:
        self.maps = maps
        self.cuts = _cut_points(maps=maps)
        self.fragments: dict[tuple[str, str], Fragment] = {}  # by block or exit and rendition
        random = SplitMix64(2026)
        self.shared = {"shared/bias": _drawn(random, (CHANNELS,), 64)}
        self._add_blocks(random)
        if not maps:
            self._add_exits(random)

    def _add_blocks(self, random: SplitMix64) -> None:
        entry = _drawn(random, (CHANNELS, 3, 1, 1), 64)
        self._add("o0", _conv("o0", ["cut_0"], "cut_1", entry))
        self._add("o0", _conv("o0", ["cut_0"], "cut_1", np.round(entry * 8) / 8), rendition="int8")
        pooled = Node("GlobalAveragePool", ("cut_2_0",), "cut_2_1")
        self._add("o1", _conv("o1", ["cut_1"], "cut_2_0", _square(random), after=[pooled]))
        self._add("o2", _conv("o2", ["cut_2_0", "cut_2_1"], "cut_3", _square(random)))
        self._add("o3", (self._map_head if self.maps else self._head)("o3", "cut_3", "cut_4", random))
        self._add("m0-2", _conv("m0-2", ["cut_0"], "cut_2_0", _drawn(random, (CHANNELS, 3, 1, 1), 64), after=[pooled]))
        self._add("m1-3", _conv("m1-3", ["cut_1"], "cut_3", _square(random)))
        added = Node("Add", ("cut_2_0", "cut_2_1"), "s2/0")
        self._add("s2", Fragment((added, Node("Relu", ("s2/0",), "cut_3"))))

    def _add_exits(self, random: SplitMix64) -> None:
        for name, live in zip(EXITS, ("cut_1", "cut_2_1", "cut_3"), strict=True):
            self._add(name, self._head(name, live, f"exit_{name}", random))

    def _head(self, owner: str, live: str, output: str, random: SplitMix64) -> Fragment:
        """Mean over the image, then a linear layer whose classes are about equally likely."""
        values = dict(zip(["cut_0"], self.golden_inputs(0, seed=1, batch=64), strict=True))
        for block in ("o0", "o1", "o2"):
            values.update(self.fragments[block, "fp32"].run({**self.shared, **values}))
        features = values[live].mean(axis=(2, 3))
        weight = _drawn(random, (CHANNELS, len(CLASSES)), 64)
        weight = np.round(128 * weight / (features @ weight).std()) / 64  # logits of a spread of about 2
        names = (f"{owner}/w", f"{owner}/b")
        nodes = (
            Node("GlobalAveragePool", (live,), f"{owner}/p"),
            Node("Flatten", (f"{owner}/p",), f"{owner}/f"),
            Node("Gemm", (f"{owner}/f", *names), output),
        )
        return Fragment(
            nodes, dict(zip(names, (weight, np.round(-64 * (features @ weight).mean(axis=0)) / 64), strict=True))
        )

    def _map_head(self, owner: str, live: str, output: str, random: SplitMix64) -> Fragment:
        """A linear layer of each pixel."""
        names = (f"{owner}/w", f"{owner}/b")
        weights = (_drawn(random, (len(CLASSES), CHANNELS, 1, 1), 64), _drawn(random, (len(CLASSES),), 16))
        return Fragment((Node("Conv", (live, *names), output),), dict(zip(names, weights, strict=True)))

    def _add(self, owner: str, fragment: Fragment, *, rendition: str = "fp32") -> None:
        self.fragments[owner, rendition] = fragment

    def run(self, owner: str, rendition: str, inputs: Sequence[Values]) -> list[Values]:
        """What a block or an exit alone makes of the tensors at its start."""
        start, outputs = self._ends(owner)
        known = {spec.name: value for spec, value in zip(self.cuts[start].tensors, inputs, strict=True)}
        values = self.fragments[owner, rendition].run({**self.shared, **known})
        return [values[name] for name in outputs]

    def _ends(self, owner: str) -> tuple[int, list[str]]:
        if owner in EXITS:
            return EXITS[owner], [f"exit_{owner}"]
        start, end = SPANS[owner]
        return start, [spec.name for spec in self.cuts[end].tensors]

    def golden(self, owner: str, rendition: str) -> list[Values]:
        """The answer of a block or an exit to its golden input."""
        return self.run(owner, rendition, self.golden_inputs(self._ends(owner)[0]))

    def golden_inputs(
        self, cut_point: int, *, seed: int = GOLDEN_SEED, batch: int = GOLDEN_BATCH, side: int = SIDE
    ) -> list[Values]:
        """The golden inputs of a cut point in float64; ``side``: of the images at cut point 0."""
        drawn = golden_inputs(_cut_points(side, maps=self.maps)[cut_point], seed=seed, batch=batch)
        return [values.astype(np.float64) for values in drawn]

    def golden_original(self, side: int = SIDE) -> list[Values]:
        """The answer of the original path to its golden input."""
        values = self.golden_inputs(0, side=side)
        for block in ("o0", "o1", "o2", "o3"):
            values = self.run(block, "fp32", values)
        return values

    def write(self, folder: Path) -> Manifest:
        """Write the bundle, signed with ``KEY``, in place of what is there."""
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "blobs").mkdir(parents=True)
        shared_data = b"".join(_initializer(*one) for one in self.shared.items())
        shared = _store(folder, shared_data)
        manifest = Manifest(
            format_version="1.3",
            name="maps" if self.maps else "reference",
            version=1,
            task=Task("segmentation" if self.maps else "classification", CLASSES),
            preprocessing=Preprocessing(scale=1 / 255, mean=(0.5, 0.25, 0.5), std=(0.25, 0.5, 0.25)),
            cut_points=self.cuts,
            blocks=tuple(self._block(folder, name, shared) for name in SPANS),
            exits=() if self.maps else tuple(self._exit(folder, name) for name in EXITS),
            input_sizes=tuple(self._input_size(side) for side in OTHER_SIDES),
            onnx=Onnx(ir_version=IR_VERSION, opset=OPSET),
            self_test=SelfTest(GOLDEN_SEED, GOLDEN_BATCH, _golden(self.golden_original())),
            metrics=Metrics("none", 0, 0.0, (), 0.0, 0, 0),
            provenance=Provenance("reference", "tests/contract", None, None, "none", {"seed": 2026}, {}),
            shared_sizes={shared: len(shared_data)},
        )
        data = encode_manifest(manifest)
        (folder / "manifest.json").write_bytes(data)
        (folder / "manifest.sig").write_bytes(KEY.sign(data))
        return manifest

    def _block(self, folder: Path, name: str, shared: str) -> Block:
        start, end = SPANS[name]
        needs = (shared,) if any("shared/bias" in node.inputs for node in self.fragments[name, "fp32"].nodes) else ()
        macs = 100 * (end - start) + 10 * start
        return Block(name, start, end, KINDS[name[0]], 16, macs, self._renditions(folder, name, needs))

    def _exit(self, folder: Path, name: str) -> Exit:
        position, branch = EXITS[name], name.partition("-")[2]
        return Exit(name, position, branch, 15, 12, self._renditions(folder, name, ()), accuracy=0.5 + position / 10)

    def _input_size(self, side: int) -> InputSize:
        shapes = tuple(tuple(spec.shape for spec in cut.tensors) for cut in _cut_points(side, maps=self.maps))
        return InputSize((side, side), shapes, _golden(self.golden_original(side)), error=0.125)

    def _renditions(self, folder: Path, owner: str, needs: tuple[str, ...]) -> tuple[Rendition, ...]:
        renditions = []
        for name in [rendition for one, rendition in self.fragments if one == owner]:
            data = self.fragments[owner, name].serialized()
            golden = _golden(self.golden(owner, name))
            any_size = (owner, name) not in ONE_SIZE
            blob = _store(folder, data)
            renditions.append(Rendition(name, "onnxruntime", blob, len(data), golden, needs, OPSET, any_size=any_size))
        return tuple(renditions)


def _cut_points(side: int = SIDE, *, maps: bool = False) -> tuple[CutPoint, ...]:
    square = (CHANNELS, side, side)
    return (
        CutPoint(0, (TensorSpec("cut_0", (3, side, side), low=-2.0, high=2.0),)),
        CutPoint(1, (TensorSpec("cut_1", square),)),
        CutPoint(2, (TensorSpec("cut_2_0", square), TensorSpec("cut_2_1", (CHANNELS, 1, 1)))),
        CutPoint(3, (TensorSpec("cut_3", square),)),
        CutPoint(4, (TensorSpec("cut_4", (len(CLASSES), *square[1:] * maps)),)),
    )


def _drawn(random: SplitMix64, shape: tuple[int, ...], steps: int) -> Values:
    """Multiples of 1/64 from −``steps``/64 to ``steps``/64."""
    size = int(np.prod(shape))
    return np.array([(random.below(2 * steps + 1) - steps) / 64 for _ in range(size)]).reshape(shape)


def _square(random: SplitMix64) -> Values:
    return _drawn(random, (CHANNELS, CHANNELS, 1, 1), 64)


def _conv(owner: str, inputs: Sequence[str], output: str, weight: Values, *, after: Sequence[Node] = ()) -> Fragment:
    """[Add,] convolution of one pixel with the shared bias, ReLU."""
    nodes, live = [], inputs[0]
    if len(inputs) == 2:
        live = f"{owner}/added"
        nodes = [Node("Add", (inputs[0], inputs[1]), live)]
    nodes += [Node("Conv", (live, f"{owner}/w", "shared/bias"), f"{owner}/c"), Node("Relu", (f"{owner}/c",), output)]
    return Fragment((*nodes, *after), {f"{owner}/w": weight})


def _golden(outputs: Sequence[Values]) -> Golden:
    return Golden(sample_outputs([output.astype(np.float32) for output in outputs]), tolerance=TOLERANCE)


def _store(folder: Path, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    (folder / "blobs" / name).write_bytes(data)
    return name
