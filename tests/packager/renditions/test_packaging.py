"""Renditions through ``pathweave package``: what is in the bundle, and going on with others after a failure."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import RunsOn
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from packager.inputs.job import load_job
from packager.pipeline import package

pytestmark = pytest.mark.slow

SMALL = {"steps": 0, "max_span": 1, "exit_positions": 1}


class Failing(SilentProgress):
    """Fails when the named task begins."""

    def __init__(self, name: str) -> None:
        self._name = name

    @contextmanager
    def task(self, name, total, *, done=0.0):
        if name == self._name:
            raise RuntimeError("as if killed")
        with super().task(name, total) as task:
            yield task


@pytest.mark.slow
def test_renditions_are_packaged_and_an_interrupted_run_may_go_on_with_others(pathweave, package_arguments, tmp_path):
    out = tmp_path / "bundle"
    job = load_job(
        "users_models:small",
        training="digits#train",
        validation="digits#search",
        recipe_path=Path("recipe.toml"),
        overrides=SMALL | {"renditions": ("int8",)},
        progress=SilentProgress(),
    )
    with pytest.raises(RuntimeError, match="as if killed"):
        package(job, out, progress=Failing("quantise to int8"))
    assert (tmp_path / "bundle.work").exists()

    options = ("--steps", 0, "--max-span", 1, "--exits", 1, "--rendition", "int8", "--rendition", "fp16")
    done = pathweave(*package_arguments, "--out", out, *options)
    assert done.status == 0, done.err
    bundle = Bundle.open(out)
    manifest = bundle.manifest
    assert manifest.provenance.recipe["renditions"] == "int8, fp16"
    for owner in (*manifest.blocks, *manifest.exits):
        assert [one.name for one in owner.renditions] == ["fp32", "int8", "fp16"]
        fp32, int8, fp16 = owner.renditions
        assert fp32.error is None
        assert (int8.error == 0) == (owner.id.startswith("i"))
        assert int8.error < 0.25
        assert fp16.providers
    assert all(cut.tensors[0].quantization.scale > 0 for cut in manifest.cut_points)
    run_self_test(Workspace(bundle, OnnxRuntime(threads=1)))

    sizes = bundle.blob_sizes()
    assert done.result["rendition_bytes"].keys() == {"fp32", "int8", "fp16"}
    assert sum(done.result["rendition_bytes"].values()) == sum(sizes.values())
    shown = pathweave("inspect", out, "--json").result
    assert shown["sizes"]["renditions"] == done.result["rendition_bytes"]

    here = Bundle.open(out, accepts=RunsOn("onnxruntime", frozenset({"CPUExecutionProvider"})))
    assert {edge.rendition for edge in here.supernet.edges} == {"fp32", "int8"}
    assert sum(here.blob_sizes().values()) < sum(sizes.values())


def test_without_them_there_is_fp32_alone_and_no_quantisation(packaged):
    manifest = Bundle.open(packaged).manifest
    assert {one.name for owner in (*manifest.blocks, *manifest.exits) for one in owner.renditions} == {"fp32"}
    assert {cut.tensors[0].quantization for cut in manifest.cut_points} == {None}


def test_a_kind_that_there_is_not_is_a_usage_error(pathweave, package_arguments, tmp_path):
    done = pathweave(*package_arguments, "--out", tmp_path / "bundle", "--rendition", "int4")
    assert done.status == 2
    assert "'int4' is not one of" in done.err


def test_weights_in_few_bits_are_smaller_in_the_bundle_and_as_large_in_memory(pathweave, package_arguments, tmp_path):
    out = tmp_path / "bundle"
    options = ("--steps", 0, "--max-span", 1, "--exits", 1, "--rendition", "w8", "--rendition", "w4")
    done = pathweave(*package_arguments, "--out", out, *options)
    assert done.status == 0, done.err
    bundle = Bundle.open(out)
    packed = [one for owner in bundle.manifest.blocks for one in owner.renditions if one.name == "w4"]
    assert packed
    for one in packed:
        assert one.error is not None
        assert one.loaded_bytes is not None
        assert bundle.loaded_size(one.blob) == max(one.size_bytes, one.loaded_bytes)
    workspace = Workspace(bundle, OnnxRuntime(threads=1))
    run_self_test(workspace)
    edges = [edge for edge in bundle.supernet.edges if edge.rendition in ("fp32", "w4")]
    whole = {edge.block: workspace.footprint([edge], None) for edge in edges if edge.rendition == "fp32"}
    for edge in (edge for edge in edges if edge.rendition == "w4"):
        assert workspace.footprint([edge], None).resident_bytes >= 0.9 * whole[edge.block].resident_bytes


def test_a_bundle_for_npus_says_what_each_chip_takes_and_runs_elsewhere_as_before(
    qnn, pathweave, package_arguments, tmp_path
):
    out = tmp_path / "bundle"
    options = ("--steps", 0, "--max-span", 1, "--exits", 1, "--rendition", "htp", "--chip", "v73", "--chip", "qcs6490")
    done = pathweave(*package_arguments, "--out", out, *options)
    assert done.status == 0, done.err
    bundle = Bundle.open(out)
    made = {owner.id: one for owner in bundle.manifest.blocks for one in owner.renditions if one.name == "htp"}
    originals = {block.id for block in bundle.manifest.blocks if block.is_original}
    assert originals <= made.keys()
    for part in originals:
        assert made[part].error is not None
        assert [one.chip for one in made[part].compiled] == ["v73", "qcs6490"]
    run_self_test(
        Workspace(Bundle.open(out, accepts=RunsOn("onnxruntime", frozenset({"CPUExecutionProvider"}))), OnnxRuntime())
    )
    npu = Bundle.open(out, accepts=RunsOn("onnxruntime", frozenset({"QNNExecutionProvider"})))
    assert {edge.rendition for edge in npu.supernet.edges} == {"fp32", "htp"}

    shown = pathweave("inspect", out, "--json").result
    assert [one["chip"] for one in shown["chips"]] == ["v73", "qcs6490"]
    assert shown["chips"][0]["macs_share"] == 1.0
    assert shown["chips_outdated"] is None
    assert "v73 (onnxruntime-qnn " in pathweave("inspect", out).out


def test_a_chip_that_there_is_not_is_a_usage_error(pathweave, package_arguments, tmp_path):
    done = pathweave(*package_arguments, "--out", tmp_path / "bundle", "--rendition", "htp", "--chip", "v12")
    assert done.status == 2
    assert "'v12' is not one of" in done.err
