"""Families end to end: what is in the bundle, what it computes, how a killed run goes on, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import FORMAT_VERSION
from device_sdk.data.datasets import load_dataset
from device_sdk.data.preprocessing import prepare
from device_sdk.errors import UsageError
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.search.ladder import ladder
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Plan, Subnet
from packager.errors import ResumeError
from packager.family import pipeline
from packager.family.joining import common_sizes
from packager.family.pipeline import dominant, package_family
from packager.pipeline import Limits

SETTINGS = AdaptationSettings(seed=0, time_limit_s=5.0)


@pytest.fixture(scope="module")
def bundle(family):
    return Bundle.open(family.packaged.folder)


def test_each_member_answers_as_it_does_alone(bundle, loaded, digits):
    images = torch.from_numpy(prepare(digits("search").images[:16], loaded[0].preprocessing, input_shape=(1, 8, 8)))
    workspace = Workspace(bundle, OnnxRuntime(threads=1))
    for path, model in zip(bundle.supernet.originals, loaded, strict=True):
        plan = workspace.load_plan(Plan(path), batch=16)
        answers = plan.run(images.numpy()).output
        plan.close()
        with torch.no_grad():
            np.testing.assert_allclose(answers, model.module(images).numpy(), rtol=1e-3, atol=1e-3)


def test_the_members_are_named_with_their_accuracy(bundle):
    members = bundle.manifest.members
    assert [one.name for one in members] == ["large", "small"]
    assert all(0.2 < one.accuracy <= 1 for one in members)
    assert bundle.manifest.format_version == FORMAT_VERSION
    assert bundle.supernet.original == bundle.supernet.originals[0]


def test_the_bundle_passes_its_self_test(bundle):
    run_self_test(Workspace(bundle, OnnxRuntime(threads=1)))


def test_stitches_lead_from_one_member_to_another_in_both_renditions(bundle, family):
    stitches = [block for block in bundle.supernet.blocks if block.kind == "stitch"]
    assert len(stitches) == len(family.stitches) > 0
    for block in stitches:
        assert bundle.supernet.replaced(block) is None
        assert [one.name for one in block.renditions] == ["fp32", "int8"]
        assert block.start < block.end


def test_a_path_through_a_stitch_answers(bundle, digits, loaded):
    supernet = bundle.supernet
    stitch = next(block for block in supernet.blocks if block.kind == "stitch")
    head = next(found for found in supernet.original_stretches(0, stitch.start) if found)
    edges = (
        *supernet.edges_along(head),
        *supernet.edges_along([stitch]),
        *supernet.originals_from(stitch.end),
    )
    images = prepare(digits("search").images[:64], loaded[0].preprocessing, input_shape=(1, 8, 8))
    plan = Workspace(bundle, OnnxRuntime(threads=1)).load_plan(Plan(Subnet(edges)), batch=64)
    right = (plan.run(images).output.argmax(1) == digits("search").labels[:64]).mean()
    plan.close()
    assert right > 0.3  # ten classes: far above chance without any training


def test_sampled_paths_run(bundle, digits, loaded):
    images = prepare(digits("search").images[:2], loaded[0].preprocessing, input_shape=(1, 8, 8))
    workspace = Workspace(bundle, OnnxRuntime(threads=1))
    for subnet in sample_uniformly(bundle.supernet, count=12, random=SplitMix64(1)):
        plan = workspace.load_plan(Plan(subnet), batch=2)
        assert np.isfinite(plan.run(images).output).all()
        plan.close()


def test_the_ladder_has_a_column_for_each_member_and_rendition(bundle):
    columns = ladder(bundle.supernet)
    firsts = [column[0].edges[0] for column in columns]
    assert [(edge.block, edge.rendition) for edge in firsts] == [
        ("large.o0", "fp32"),
        ("large.o0", "int8"),
        ("small.o0", "fp32"),
        ("small.o0", "int8"),
    ]


def test_a_device_adapts_a_family(bundle, tmp_path):
    data = load_dataset("digits#search", limit=120)
    with AdaptiveModel.open(bundle.folder, state_folder=tmp_path) as model:
        found = model.adapt(data.images, Goal(latency_ratio=0.7), labels=data.labels, settings=SETTINGS)
        assert found.choice.plan.subnet.edges
        assert model(data.images[:3]).output.shape == (3, 10)


def test_only_input_sizes_of_all_members_are_common():
    def member(*sides):
        return SimpleNamespace(
            manifest=SimpleNamespace(input_sizes=[SimpleNamespace(size=(one, one)) for one in sides])
        )

    assert common_sizes([member(240, 224, 208), member(208, 240)]) == ((240, 240), (208, 208))
    assert common_sizes([member(240), member()]) == ()


def test_exits_stay_with_their_member(bundle):
    for exit_ in bundle.manifest.exits:
        member = exit_.id.split(".")[0]
        ends = {
            bundle.supernet.block(name).end
            for one in bundle.manifest.members
            if one.name == member
            for name in one.blocks
        }
        assert exit_.position in ends


def test_what_a_member_loses_is_stored_with_its_blocks(bundle):
    large, small = bundle.manifest.members
    assert all(not bundle.supernet.block(name).distillation_error for name in large.blocks)
    assert sum(bundle.supernet.block(name).distillation_error or 0 for name in small.blocks) > 0


def test_a_finished_family_is_found_again(make_members, family):
    again = package_family(make_members(), family.packaged.folder)
    assert not again.packaged.fresh
    assert again.stitches == family.stitches
    with pytest.raises(ResumeError):
        package_family(make_members(seed=1), family.packaged.folder)


def test_a_killed_run_goes_on_and_makes_the_same_bundle(make_members, family, tmp_path, monkeypatch):
    packaged = []

    def dies(job, out, **options):
        if packaged:
            raise KeyboardInterrupt
        packaged.append(job.name)
        return real(job, out, **options)

    real = pipeline.package
    monkeypatch.setattr(pipeline, "package", dies)
    with pytest.raises(KeyboardInterrupt):
        package_family(make_members(), tmp_path / "again")
    monkeypatch.setattr(pipeline, "package", real)
    made = package_family(make_members(), tmp_path / "again")
    assert made.packaged.manifest == family.packaged.manifest
    assert not (tmp_path / "again.work").exists()


@pytest.mark.slow
def test_stitches_train_and_none_gets_worse(make_members, family, tmp_path):
    made = package_family(make_members(steps=12, batch=32), tmp_path / "trained")
    before = {one["id"]: one["loss"] for one in family.stitches}
    after = {one["id"]: one["loss"] for one in made.stitches}
    assert all(after[name] <= loss + 0.02 for name, loss in before.items() if name in after)
    report = json.loads((made.packaged.folder / "packaging.json").read_bytes())
    assert "train stitches" in report["step_seconds"]


def test_members_with_programs_of_another_runtime_are_named(make_members, tmp_path):
    pytest.importorskip("executorch")
    from packager.errors import PackagingError

    with pytest.raises(PackagingError, match="has a rendition for executorch, whose program cannot be renamed"):
        package_family(make_members(renditions=("fp32", "xnnpack")), tmp_path / "xnnpack")


def metrics(accuracy, samples=1_000):
    return SimpleNamespace(original_accuracy=accuracy, samples=samples)


@pytest.mark.parametrize(
    ("macs", "accuracies", "expected"),
    [
        ([100, 50], [0.90, 0.95], 1),
        ([100, 50], [0.90, 0.91], None),
        ([100, 50], [0.95, 0.90], None),
        ([50, 50], [0.80, 0.95], None),
        ([100, 50, 70], [0.90, 0.96, 0.955], None),
        ([100, 50, 70], [0.80, 0.96, 0.90], 1),
    ],
)
def test_only_a_member_of_less_work_that_is_surely_more_accurate_than_all_others_dominates(macs, accuracies, expected):
    assert dominant(macs, list(map(metrics, accuracies))) == expected


def test_a_member_that_dominates_is_packaged_alone(make_members, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "dominant", lambda macs, metrics: 1)
    found = package_family(make_members(), tmp_path / "alone", name="two")
    manifest = Bundle.open(tmp_path / "alone").manifest
    assert not manifest.members
    assert manifest.name == "two"
    assert "small takes less work than large and is more accurate" in manifest.notes[-1]
    assert not found.stitches
    run_self_test(Workspace(Bundle.open(tmp_path / "alone"), OnnxRuntime(threads=1)))
    assert not package_family(make_members(), tmp_path / "alone", name="two").packaged.fresh


def test_a_family_larger_than_the_memory_is_refused_before_anything_is_written(make_members, tmp_path):
    with pytest.raises(UsageError, match="of memory are too few for a family of 2 members") as raised:
        package_family(make_members(), tmp_path / "small", limits=Limits(memory_bytes=10_000_000))
    assert "--memory-gb" in str(raised.value.hint)
    assert not list(tmp_path.iterdir())
