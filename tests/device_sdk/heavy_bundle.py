"""Heavy bundles: weights that are much larger than all that happens besides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import Manifest, Metrics, Onnx, Provenance, SelfTest, Task, encode_manifest
from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, Rendition, TensorSpec
from device_sdk.supernet.plan import Edge, ExitChoice
from tests.device_sdk.tiny_bundle import CLASSES, GOLDEN_BATCH, GOLDEN_SEED, IR_VERSION, OPSET, output_name

_HEAVY_SIDE = 4


@dataclass(frozen=True)
class _HeavyBlock:
    """A 3×3 convolution with ReLU from ``inputs`` to ``outputs`` channels, or a classifier of their means.

    ``stride``: of the convolution.
    """

    name: str
    start: int
    end: int
    inputs: int
    outputs: int
    classifies: bool
    stride: int = 1

    def fragment(self, seed: int) -> bytes:
        from onnx import GraphProto, helper, numpy_helper

        random = np.random.default_rng(seed)
        begin, end = f"cut_{self.start}", output_name(self.name, self.end)
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
                helper.make_node("Conv", [begin, weight], [inner], pads=[1] * 4, strides=[self.stride] * 2),
                helper.make_node("Relu", [inner], [end]),
            ]
        tensors = [numpy_helper.from_array(value, name) for name, value in values.items()]
        return GraphProto(node=nodes, initializer=tensors).SerializeToString()


def write_heavy_bundle(
    folder: Path,
    *,
    blocks: int,
    channels: int,
    colours: int | None = None,
    merged: Iterable[tuple[int, int]] = (),
    exits: Iterable[int] = (),
    sides: Sequence[int] | None = None,
) -> Bundle:
    """``blocks`` convolutions of ``channels``² · 36 bytes each and a classifier for three classes.

    With ``colours`` the first one takes images of so many; ``merged``: spans that one convolution replaces; ``exits``:
    positions of classifiers; ``sides``: of the images at each cut point before the classifier. Golden outputs are those
    of ONNX Runtime.
    """
    (folder / "blobs").mkdir(parents=True)
    width = [colours or channels, *[channels] * blocks]
    side = tuple(sides or [_HEAVY_SIDE] * (blocks + 1))
    cuts = [CutPoint(n, (TensorSpec(f"cut_{n}", (width[n], side[n], side[n])),)) for n in range(blocks + 1)]
    cuts.append(CutPoint(blocks + 1, (TensorSpec(f"cut_{blocks + 1}", (3,)),)))
    spans = [(f"o{n}", n, n + 1) for n in range(blocks)] + [(f"m{start}-{end}", start, end) for start, end in merged]
    heavy = [
        _HeavyBlock(name, start, end, width[start], channels, False, side[start] // side[end])
        for name, start, end in spans
    ]
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
