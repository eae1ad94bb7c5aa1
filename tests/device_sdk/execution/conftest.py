"""A bundle that is heavy: its weights are much larger than all that happens besides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import Manifest, Metrics, Onnx, Provenance, SelfTest, Task, encode_manifest
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.graph import Block, CutPoint, Golden, Rendition, TensorSpec

OPSET, IR_VERSION, SIDE = 20, 10, 4


def _fragment(block: int, channels: int, classes: int) -> bytes:
    """A 3×3 convolution with ReLU, or the classifier if there are ``classes``."""
    from onnx import GraphProto, helper, numpy_helper

    random, names = np.random.default_rng(block), (f"cut_{block}", f"o{block}/weight", f"o{block}/inner")
    if classes:
        weight = random.standard_normal((channels, classes), dtype=np.float32)
        nodes = [
            helper.make_node("ReduceMean", [names[0], f"o{block}/axes"], [names[2]], keepdims=0),
            helper.make_node("MatMul", [names[2], names[1]], [f"cut_{block + 1}"]),
        ]
        extra = [numpy_helper.from_array(np.array([2, 3], np.int64), f"o{block}/axes")]
    else:
        weight = random.standard_normal((channels, channels, 3, 3), dtype=np.float32) / np.sqrt(9 * channels / 2)
        nodes = [
            helper.make_node("Conv", [names[0], names[1]], [names[2]], pads=[1] * 4),
            helper.make_node("Relu", [names[2]], [f"cut_{block + 1}"]),
        ]
        extra = []
    graph = GraphProto(node=nodes, initializer=[numpy_helper.from_array(weight.astype(np.float32), names[1]), *extra])
    return graph.SerializeToString()


def _build(folder: Path, *, blocks: int, channels: int) -> Bundle:
    """``blocks`` convolutions of ``channels``² · 36 bytes each and a classifier for three classes."""
    (folder / "blobs").mkdir(parents=True)
    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", (channels, SIDE, SIDE)),)) for index in range(blocks + 1)]
    cuts.append(CutPoint(blocks + 1, (TensorSpec(f"cut_{blocks + 1}", (3,)),)))
    described = []
    for block in range(blocks + 1):
        data = _fragment(block, channels, 3 if block == blocks else 0)
        name = hashlib.sha256(data).hexdigest()
        (folder / "blobs" / name).write_bytes(data)
        rendition = Rendition("fp32", "onnxruntime", name, len(data), Golden((), 0.0), opset=OPSET)
        described.append(Block(f"o{block}", block, block + 1, "original", 1, 1, (rendition,)))
    manifest = Manifest(
        format_version="1.0",
        name="heavy",
        version=1,
        task=Task(kind="classification", class_names=("a", "b", "c")),
        preprocessing=Preprocessing(scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3),
        cut_points=tuple(cuts),
        blocks=tuple(described),
        onnx=Onnx(ir_version=IR_VERSION, opset=OPSET),
        self_test=SelfTest(seed=1, batch=1, original=Golden((), 0.0)),
        metrics=Metrics("none", 0, 0.0, (), 0.0, 0, 0),
        provenance=Provenance("heavy", "made by the tests", None, None, "none", {}, {}),
    )
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    return Bundle.open(folder)


@pytest.fixture(scope="session")
def build_heavy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """Builds a bundle of ``blocks`` convolutions of ``channels``, in a folder of its own."""
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    return lambda **sizes: _build(tmp_path_factory.mktemp("heavy") / "bundle", **sizes)


@pytest.fixture(scope="session")
def heavy_bundle(build_heavy: Callable[..., Bundle]) -> Bundle:
    """42 MB of weights in fourteen blocks of 3 MB."""
    return build_heavy(blocks=14, channels=288)
