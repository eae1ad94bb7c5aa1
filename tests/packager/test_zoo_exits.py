"""Exits of the branch zoo from the recipe to the bundle, and to what a device places."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from device_sdk.data.datasets import ImageDataset
from device_sdk.errors import UsageError
from device_sdk.policies.placement import candidates_by_macs, place
from device_sdk.progress import SilentProgress
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from packager.branch_zoo.selection import answer_times
from packager.errors import WeightsError
from packager.inputs.job import Job, load_job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.inputs.weights import read_state_dict
from packager.pipeline import Limits, dry_run, package
from packager.planning import run_plan
from packager.planning.estimate import Machine
from packager.supernet.expansion import expand

BRANCHES = ("none-p1", "none-p2h256", "separable3-p1", "spatial3-p2", "none-p4h256")


@pytest.fixture(scope="module")
def zoo_job(tiny_traced, digits, digits_preprocessing) -> Job:
    """The network that knows the digits, with exits of a few branches at two cut points and nothing else to train."""
    model = LoadedModel(tiny_traced.whole, (1, 8, 8), digits_preprocessing, None, "tiny", None, "a test")
    recipe = Recipe(steps=60, batch=32, max_span=1, identity=False, exit_positions=2, branches=BRANCHES, variants=2)
    training = digits("train", limit=320)
    names = training.class_names
    return Job(
        replace(model, class_names=names), training, "digits", digits("search", limit=120), "digits", recipe, "tiny"
    )


@pytest.fixture(scope="module")
def zoo_bundle(zoo_job, tmp_path_factory):
    """The job's bundle, and the weights of its exits."""
    folder = tmp_path_factory.mktemp("zoo")
    packaged = package(zoo_job, folder / "bundle", save_branches=folder / "branches.safetensors")
    return packaged, folder / "branches.safetensors"


def test_the_zoos_exits_are_verified_and_in_the_bundle(zoo_bundle):
    packaged, _ = zoo_bundle
    exits = packaged.manifest.exits
    assert {exit_.position for exit_ in exits} == {2, 4}
    assert all(exit_.id == f"x{exit_.position}-{exit_.branch}" for exit_ in exits)
    merged = {exit_.id for exit_ in exits if exit_.branch.endswith("-merged")}
    assert merged
    by_id = {exit_.id: exit_ for exit_ in exits}
    for name in merged:
        whole, sibling = by_id[name.removesuffix("-merged")], by_id[name]
        assert sibling.renditions[0].size_bytes < 0.75 * whole.renditions[0].size_bytes
    assert packaged.manifest.metrics.exit_steps == 60
    assert any(note.startswith("branch zoo: survival judged by MACs") for note in packaged.manifest.notes)


def test_placement_chooses_among_them_and_the_device_runs_what_it_chose(zoo_bundle, digits, tmp_path):
    packaged, _ = zoo_bundle
    candidates, full = candidates_by_macs(packaged.manifest.supernet())
    assert len(candidates) == len(packaged.manifest.exits)
    bytes_of = {one.exit: one.memory_bytes for one in candidates}
    unlimited = place(candidates, full_time=full, memory_bytes=None)
    small = place(candidates, full_time=full, memory_bytes=3_000)
    assert small.exits
    assert sum(bytes_of[name] for name in small.exits) <= 3_000
    assert small.expectation <= unlimited.expectation
    images: ImageDataset = digits("report", limit=60)
    with AdaptiveModel.open(packaged.folder, state_folder=tmp_path) as model:
        found = model.adapt(
            images.images,
            Goal(optimise="latency_ms", max_drop=0.005),
            {"exits"},
            images.labels,
            progress=SilentProgress(),
        )
        answer = model(images.images[:8])
    assert {choice.exit for choice in found.plan.exits} <= set(bytes_of)
    assert answer.output.shape == (8, 10)
    assert np.isfinite(answer.output).all()


@pytest.mark.slow
def test_saved_branches_rebuild_the_same_exits_without_training(zoo_bundle, zoo_job, tmp_path):
    packaged, weights = zoo_bundle
    recipe = structs.replace(zoo_job.recipe, steps=0)
    rebuilt = package(replace(zoo_job, recipe=recipe, branch_weights=read_state_dict(weights)), tmp_path / "again")
    first = {exit_.id: exit_.renditions[0].blob for exit_ in packaged.manifest.exits}
    assert {exit_.id: exit_.renditions[0].blob for exit_ in rebuilt.manifest.exits} == first


def test_without_steps_there_are_no_exits_and_the_bundle_says_so(zoo_job, tmp_path):
    packaged = package(replace(zoo_job, recipe=structs.replace(zoo_job.recipe, steps=0)), tmp_path / "bundle")
    assert packaged.manifest.exits == ()
    assert "no exits: the training had no step for them" in packaged.manifest.notes


@pytest.mark.slow
def test_minutes_end_the_training_of_the_zoo(zoo_job, tmp_path):
    recipe = Recipe(**{**structs.asdict(zoo_job.recipe), "steps": None, "budget_minutes": 0.6, "exit_positions": 1})
    packaged = package(replace(zoo_job, recipe=recipe), tmp_path / "bundle", limits=Limits())
    assert packaged.manifest.exits
    assert packaged.manifest.metrics.exit_steps > 0


def test_an_estimate_counts_the_exits_that_will_be_left(zoo_job, monkeypatch):
    monkeypatch.setattr(run_plan, "measured_machine", lambda *_: Machine(mac_s=1e-9, pace=1.0))
    without = dry_run(replace(zoo_job, recipe=structs.replace(zoo_job.recipe, exit_positions=0)))
    with_exits = dry_run(zoo_job)
    assert with_exits["bundle_mb"] >= without["bundle_mb"]
    assert with_exits["seconds"]["export"] > without["seconds"]["export"]


@pytest.mark.parametrize("branches", [("pooled",), (), ("none-p2h256-merged",)], ids=str)
def test_unknown_branches_are_refused_before_training(zoo_job, branches):
    with pytest.raises(UsageError, match=r"no branch|empty list"):
        dry_run(replace(zoo_job, recipe=structs.replace(zoo_job.recipe, branches=branches)))


def test_weights_that_belong_to_no_branch_here_are_refused(zoo_job, zoo_bundle, tmp_path):
    _, path = zoo_bundle
    weights = dict(read_state_dict(path))
    name = next(key for key in weights if key.endswith("dense.0.weight"))
    for changed, message in (
        ({name: torch.zeros(3, 3)}, "other names or shapes"),
        ({"x77-none-p1.dense.1.weight": torch.zeros(10, 16)}, "no place for x77"),
    ):
        job = replace(zoo_job, branch_weights=weights | changed)
        with pytest.raises(WeightsError, match=message):
            package(job, tmp_path / "bundle")


# A device's profile


def load_digits(**choices) -> Job:
    data = {"training": "digits#train", "validation": "digits#search", "overrides": {"steps": 0}}
    return load_job("zoo:resnet_digits", **data, **choices, progress=SilentProgress())


def test_the_profile_that_a_device_keeps_says_when_branches_answer(zoo_bundle, tiny_traced, tmp_path):
    packaged, _ = zoo_bundle
    with AdaptiveModel.open(packaged.folder, state_folder=tmp_path) as model:
        measured = model.profile()
    job = load_digits(profile=next(path for path in tmp_path.rglob("*.json") if "profile" in path.name))
    assert job.device_profile == measured
    assert job.description() != load_digits().description()
    times = answer_times(expand(tiny_traced, max_span=1), job.device_profile)
    assert times.unit == "ms"
    assert times.full == pytest.approx(measured.original_ms, rel=0.5)
    branch_ms = next(one.cost.latency_ms for one in measured.exits if one.exit == "x2-none-p1")
    assert times.answer("x2-none-p1", 2, 0) == pytest.approx(times.reach[2] + branch_ms)


@pytest.mark.parametrize("content", [b"", b"{}", b"no JSON"], ids=["empty", "of nothing", "no JSON"])
def test_a_file_that_is_no_profile_is_refused(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not the profile of a device"):
        load_digits(profile=path)
    with pytest.raises(UsageError, match="cannot read the profile"):
        load_digits(profile=tmp_path / "none.json")
