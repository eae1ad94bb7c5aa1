"""The smallest bundle, for tests of writing it."""

from __future__ import annotations

from pathlib import Path

from device_sdk.bundles.manifest import FORMAT_VERSION, Manifest, Metrics, Onnx, Provenance, SelfTest, Task
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.supernet.blocks import Block, CutPoint, Golden, Rendition, TensorSpec
from packager.output.bundle_folder import BundleWriter
from packager.output.output_claim import OutputClaim

ROOT = Path(__file__).parents[3]
BLOB = b"weights" * 100


def manifest_of(blob: str, *, size: int, version: int = 1) -> Manifest:
    golden = Golden(((0.0,),), 0.1)
    rendition = Rendition("fp32", "onnxruntime", blob=blob, size_bytes=size, golden=golden)
    return Manifest(
        format_version=FORMAT_VERSION,
        name="small",
        version=version,
        task=Task("classification", ("a", "b")),
        preprocessing=Preprocessing(scale=1.0, mean=(0.0,), std=(1.0,), channels=1),
        cut_points=(CutPoint(0, (TensorSpec("cut_0", (1, 2, 2)),)), CutPoint(1, (TensorSpec("cut_1", (2,)),))),
        blocks=(Block("o0", 0, 1, "original", parameters=1, macs=1, renditions=(rendition,)),),
        onnx=Onnx(10, 20),
        self_test=SelfTest(1, 1, golden),
        metrics=Metrics("d", 1, 1.0, (), 0.0, 0, 0),
        provenance=Provenance("m", "s", None, None, "d", {}, {}),
    )


def write(target: Path, *, data: bytes = BLOB, version: int = 1, key: Path | None = None) -> None:
    with OutputClaim(target) as claim, BundleWriter(claim) as writer:
        writer.finish(manifest_of(writer.add_blob(data), size=len(data), version=version), private_key=key)
