from __future__ import annotations

import msgspec
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import Manifest, Metrics, Onnx, Provenance, SelfTest, Task
from device_sdk.bundles.runnable import RunsOn, runnable_part
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import RuntimeFailedError
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Rendition, TensorSpec
from device_sdk.supernet.plan import Edge

HERE = RunsOn("onnxruntime", frozenset({"CPUExecutionProvider"}))


def rendition(name, runtime="onnxruntime", providers=()):
    return Rendition(name, runtime, blob="0" * 64, size_bytes=1, golden=Golden((), 0.0), providers=providers)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (rendition("fp32"), True),
        (rendition("int8"), False),
        (rendition("fp16", providers=("CUDAExecutionProvider", "TensorrtExecutionProvider")), False),
        (rendition("other", providers=("CUDAExecutionProvider", "CPUExecutionProvider")), True),
        (rendition("xnnpack", "executorch"), False),
    ],
)
def test_a_rendition_runs_where_runtime_and_provider_are_unless_it_is_left_out(one, expected):
    runs = RunsOn("onnxruntime", frozenset({"CPUExecutionProvider"}), left_out=frozenset({"int8"}))
    assert runs(one) is expected


def test_without_a_provider_all_of_a_runtime_run():
    assert RunsOn("onnxruntime")(rendition("fp16", providers=("CUDAExecutionProvider",)))


def test_a_bundle_that_all_runs_is_whole(bundle):
    assert runnable_part(bundle.manifest, HERE) == bundle.manifest


def changed(manifest, *names, **fields):
    """The manifest with other renditions of blocks and exits."""

    def change(owner):
        if owner.id not in names:
            return owner
        renditions = tuple(msgspec.structs.replace(one, **fields) for one in owner.renditions)
        return msgspec.structs.replace(owner, renditions=renditions)

    blocks, exits = (tuple(map(change, owners)) for owners in (manifest.blocks, manifest.exits))
    return msgspec.structs.replace(manifest, blocks=blocks, exits=exits)


def test_added_blocks_and_exits_that_do_not_run_are_left_out(bundle):
    found = runnable_part(changed(bundle.manifest, "m1-3", "x2-pooled", runtime="executorch"), HERE)
    assert {block.id for block in bundle.manifest.blocks} - {block.id for block in found.blocks} == {"m1-3"}
    assert {one.id for one in bundle.manifest.exits} - {one.id for one in found.exits} == {"x2-pooled"}
    assert found.supernet().original == bundle.supernet.original


def test_an_original_block_that_does_not_run_is_an_error(bundle):
    with pytest.raises(RuntimeFailedError, match=r"nothing that runs here for block o2: it has fp32 for executorch"):
        runnable_part(changed(bundle.manifest, "o2", runtime="executorch"), HERE)


def test_an_opened_bundle_offers_neither_edges_nor_blobs_that_do_not_run(own_bundle):
    whole = Bundle.open(own_bundle.folder)
    int8 = whole.supernet.rendition(Edge("o1", "int8")).blob
    (own_bundle.folder / "blobs" / int8).unlink()
    found = Bundle.open(own_bundle.folder, accepts=RunsOn("onnxruntime", left_out=frozenset({"int8"})))
    found.verify()
    assert Edge("o1", "int8") not in found.supernet.edges
    assert set(whole.supernet.edges) - set(found.supernet.edges) == {Edge("o1", "int8")}
    assert set(whole.manifest.blobs()) - set(found.blob_sizes()) == {int8}
    assert found.digest == whole.digest


@pytest.mark.parametrize(("any_size", "kept"), [("fp32", 0), ("int8", 1)])
def test_input_sizes_stay_only_if_every_original_still_runs_at_them(any_size, kept):
    def spec(index, side):
        return TensorSpec(f"cut_{index}", (2,) if index == 2 else (3, side, side))

    renditions = tuple(msgspec.structs.replace(rendition(name), any_size=name == any_size) for name in ("fp32", "int8"))
    cuts = tuple(CutPoint(index, (spec(index, 8),)) for index in range(3))
    blocks = tuple(Block(f"o{k}", k, k + 1, "original", 0, 0, renditions) for k in range(2))
    size = InputSize((4, 4), tuple((spec(index, 4).shape,) for index in range(3)), Golden((), 0.0))
    manifest = Manifest(
        format_version="1.2",
        name="sized",
        version=1,
        task=Task("classification", ("a", "b")),
        preprocessing=Preprocessing(scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3),
        cut_points=cuts,
        blocks=blocks,
        onnx=Onnx(10, 20),
        self_test=SelfTest(0, 1, Golden((), 0.0)),
        metrics=Metrics("none", 0, 0.0, (), 0.0, 0, 0),
        provenance=Provenance("none", "none", None, None, "none", {}, {}),
        input_sizes=(size,),
    )
    found = runnable_part(
        manifest, RunsOn("onnxruntime", frozenset({"CPUExecutionProvider"}), left_out=frozenset({"fp32"}))
    )
    assert len(found.input_sizes) == kept
    assert found.supernet().sizes == ((), (4, 4))[: 1 + kept]
