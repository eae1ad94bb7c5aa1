"""Packaging through ``pathweave package``: the same bundle again, whatever interrupts it, and nothing lost."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import ExitChoice
from packager.inputs.model_loader import load_model

NUMBERED = {"distil": "1 distil", "tune": "2 tune", "exits": "3 exits", "done": "4 done"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bundle_bytes(folder: Path) -> dict[str, bytes]:
    """What belongs to the bundle: all but the report of how it was made."""
    return {name: data for name, data in contents(folder).items() if name != "packaging.json"}


@pytest.fixture
def copied(packaged) -> Path:
    """A copy of the bundle beside it, for tests that may change it."""
    copy = packaged.with_name("copied")
    for folder in (copy, packaged.with_name("copied.work")):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(packaged, copy)
    return copy


# The bundle


def test_the_bundle_passes_its_own_self_test_and_leaves_no_work_behind(packaged):
    bundle = Bundle.open(packaged)
    bundle.verify()
    run_self_test(Workspace(bundle, OnnxRuntime(threads=1)))
    assert not packaged.with_name("reference.work").exists()
    assert {path.name for path in packaged.iterdir()} == {"manifest.json", "packaging.json", "blobs"}
    assert {path.name for path in (packaged / "blobs").iterdir()} == set(bundle.manifest.blobs())
    assert None not in bundle.manifest.blobs().values()


def test_the_original_path_answers_like_the_model(packaged, monkeypatch, noise):
    monkeypatch.chdir(packaged.parent)
    bundle, model = Bundle.open(packaged), load_model("users_models:small").module
    images = noise(7, 1, 8, 8)
    (found,) = OnnxRuntime(threads=1).load(bundle.stretch(bundle.supernet.original.edges)).run([images.numpy()])
    with torch.no_grad():
        np.testing.assert_allclose(found, model(images).numpy(), atol=1e-4)


def test_the_manifest_says_what_was_done(packaged):
    manifest = Bundle.open(packaged).manifest
    assert (manifest.name, manifest.version) == ("small", 1)
    assert manifest.task.class_names == tuple("0123456789")
    metrics = manifest.metrics
    assert (metrics.distil_steps, metrics.tune_steps, metrics.exit_steps) == (14, 27, 7)
    assert manifest.metrics.max_abs_diff < 1e-4
    assert manifest.metrics.samples == 372
    assert manifest.provenance.training_data == "digits#train"
    assert manifest.provenance.recipe["steps"] == 48
    assert str(packaged.parent) not in (packaged / "manifest.json").read_text()


def test_the_manifest_describes_exits_that_run_on_a_device(packaged, noise):
    bundle, runtime = Bundle.open(packaged), OnnxRuntime(threads=1)
    manifest, supernet = bundle.manifest, bundle.supernet
    assert [exit_.id for exit_ in manifest.exits] == [
        f"x{k}-{branch}" for k in (2, 3, 4) for branch in ("pooled", "conv")
    ]
    original = supernet.original.edges
    whole = sum(supernet.block(edge.block).macs for edge in original)
    images = noise(3, 1, 8, 8).numpy()
    for exit_ in manifest.exits:
        assert 0 <= exit_.accuracy <= 1
        assert 0 < exit_.macs < 0.1 * whole
        assert exit_.parameters > 0
        (rendition,) = exit_.renditions
        assert rendition.golden.samples
        choice = ExitChoice(exit_.id, threshold=0.9)
        features, answer = runtime.load(bundle.stretch(original[: exit_.position], choice)).run([images])
        assert answer.shape == (3, 10)
        np.testing.assert_allclose(runtime.load(bundle.stretch((), choice)).run([features])[0], answer, atol=1e-5)


def test_without_training_there_are_no_exits_and_a_note_says_so(pathweave, package_arguments):
    done = pathweave(*package_arguments, "--steps", 0, "--out", "untrained")
    assert done.result["exits"] == []
    assert "no exits: the training had no step for them" in done.result["notes"]


def test_exits_are_trained_for_a_model_with_nothing_to_merge(pathweave, package_arguments):
    done = pathweave(*package_arguments, "--max-span", 1, "--exits", 1, "--steps", 3, "--out", "unmerged")
    assert done.result["steps"] == {"distil": 0, "tune": 0, "exits": 3}
    assert [exit_["id"] for exit_ in done.result["exits"]] == ["x3-pooled", "x3-conv"]
    assert done.result["range_accuracy"] == []


def test_exits_can_be_left_out(pathweave, package_arguments):
    done = pathweave(*package_arguments, "--exits", 0, "--max-span", 2, "--steps", 2, "--out", "without_exits")
    assert done.result["exits"] == []
    assert not any("exits" in note for note in done.result["notes"])


@pytest.mark.slow
def test_a_recipe_can_ask_for_every_kind_of_block_and_way_of_training(command_line, pathweave, package_arguments):
    (command_line.folder / "rich.toml").write_text(
        "steps = 16\nbatch = 16\nprecision = 'float32'\nexit_positions = 0\nmax_span = 2\nshrink_rates = 'auto'\n"
        "identity = true\nidentity_points = 100\ndistil_from = 'student'\nrecalibrate_batches = 2\npatience = 3\n"
    )
    done = pathweave(*package_arguments, "--recipe", "rich.toml", "--out", "rich")
    assert done.status == 0, done.err
    assert done.result["peak_rss_mb"] > 50
    bundle = Bundle.open(command_line.folder / "rich")
    bundle.verify()
    run_self_test(Workspace(bundle, OnnxRuntime(threads=1)))
    kinds = {
        kind: {block.id for block in bundle.manifest.blocks if block.kind == kind} for kind in ("shrunk", "identity")
    }
    assert kinds["shrunk"] <= {f"s{k}-{percent}" for k in (1, 2, 3, 4) for percent in (50, 25)}
    assert kinds["shrunk"]  # useless ones are left out
    assert kinds["identity"] <= {"i1-2", "i2-3", "i4-5"}
    assert any("far from the front" in note for note in bundle.manifest.notes)
    assert bundle.manifest.provenance.recipe["shrink_rates"] == "auto"
    report = json.loads((command_line.folder / "rich" / "packaging.json").read_bytes())
    assert report["peak_rss_bytes"] > 50e6


# Determinism and interruptions


@pytest.mark.slow
def test_a_run_that_is_killed_twice_elsewhere_goes_on_and_gives_the_same_bytes(
    packaged, command_line, package_arguments
):
    arguments, out = (*package_arguments, "--out", "elsewhere/killed"), command_line.folder / "elsewhere" / "killed"
    state_path = command_line.folder / "elsewhere" / "killed.work" / "state.pt"

    def kill_at(phase: str, *, step: int = 0, wait_s: float = 0.0) -> list[tuple[str, int]]:
        """Kill a run when its saved state has come to ``phase`` and ``step``; returns the states seen since."""
        before = state_path.stat().st_mtime_ns if state_path.exists() else 0
        process, seen, end = command_line.start(*arguments), [], time.monotonic() + 100
        while not seen or seen[-1] < (phase, step):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            if state_path.exists() and state_path.stat().st_mtime_ns != before:
                state = torch.load(state_path, weights_only=True)
                seen.append((NUMBERED[state["phase"]], done_in(state)))
            time.sleep(0.005)
        time.sleep(wait_s)
        process.kill()
        process.communicate()
        assert not out.exists()
        return seen

    def done_in(state: dict) -> int:
        return state.get("done", 0)

    first = kill_at("2 tune", step=10)
    second = kill_at("4 done", wait_s=0.7)  # in the export
    assert second[0] > first[-1]  # it did not start again

    state = torch.load(state_path, weights_only=True)
    assert state["steps_done"] == {"distil": 14, "tune": 27, "exits": 7}
    torch.save(state | {"seconds": state["seconds"] + 1000}, state_path)
    done = command_line.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert bundle_bytes(out) == bundle_bytes(packaged)
    assert json.loads((out / "packaging.json").read_bytes())["seconds"] > 1000  # earlier parts count
    assert {path.name for path in out.parent.iterdir()} == {"killed"}


def test_the_same_command_again_rewrites_nothing(packaged, pathweave, package_arguments):
    before = {path: path.stat().st_mtime_ns for path in [packaged, *packaged.rglob("*")]}
    again = pathweave(*package_arguments, "--out", "reference")
    assert again.status == 0
    assert again.result["fresh"] is False
    assert {path: path.stat().st_mtime_ns for path in [packaged, *packaged.rglob("*")]} == before


def test_work_left_beside_a_finished_bundle_is_removed(copied, pathweave, package_arguments):
    work = copied.with_name("copied.work")
    work.mkdir()
    (work / "run.json").write_text('{"pathweave": "0"}')  # killed between the last rename and the clean-up
    assert pathweave(*package_arguments, "--out", "copied").result["fresh"] is False
    assert not work.exists()


# What is there already is not lost


@pytest.mark.parametrize("change", [("--seed", 1), ("--max-span", 2), ("--exits", 1), ("--version", 2), ("--steps", 7)])
def test_another_job_does_not_touch_a_finished_bundle(packaged, pathweave, package_arguments, change):
    before = contents(packaged)
    refused = pathweave(*package_arguments, *change, "--out", "reference")
    assert refused.status == 1
    assert refused.result["error"]["type"] == "ResumeError"
    assert "--restart" in refused.result["error"]["hint"]
    assert contents(packaged) == before


def test_another_job_does_not_touch_unfinished_work(command_line, pathweave, package_arguments):
    work = command_line.folder / "unfinished.work"
    work.mkdir()
    (work / "run.json").write_text('{"name": "small", "pathweave": "0"}')
    (work / "state.pt").write_bytes(b"precious")
    refused = pathweave(*package_arguments, "--out", "unfinished")
    assert refused.result["error"]["type"] == "ResumeError"
    assert "belongs to another run" in refused.result["error"]["message"]
    assert contents(work) == {"run.json": b'{"name": "small", "pathweave": "0"}', "state.pt": b"precious"}


def test_restart_replaces_a_bundle_by_that_of_another_job(copied, pathweave, package_arguments):
    done = pathweave(*package_arguments, "--steps", 0, "--max-span", 2, "--out", "copied", "--restart")
    assert done.status == 0, done.err
    assert done.result["fresh"] is True
    bundle = Bundle.open(copied)
    bundle.verify()
    assert bundle.manifest.metrics.tune_steps == 0
    assert {path.name for path in (copied / "blobs").iterdir()} == set(bundle.manifest.blobs())


def test_a_damaged_bundle_is_told_and_kept(copied, pathweave, package_arguments):
    blob = next((copied / "blobs").iterdir())
    data = blob.read_bytes()
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = contents(copied)
    refused = pathweave(*package_arguments, "--out", "copied")
    assert refused.result["error"]["type"] == "ResumeError"
    assert "is damaged" in refused.result["error"]["message"]
    assert contents(copied) == before


@pytest.mark.parametrize("restart", [(), ("--restart",)])
def test_a_folder_that_is_no_bundle_is_not_touched(command_line, pathweave, package_arguments, restart):
    folder = command_line.folder / "holiday"
    folder.mkdir(exist_ok=True)
    (folder / "picture.png").write_bytes(b"me")
    refused = pathweave(*package_arguments, "--out", "holiday", *restart)
    assert refused.status == 1
    assert refused.result["error"]["type"] == "PackagingError"
    assert contents(folder) == {"picture.png": b"me"}


@pytest.mark.parametrize("restart", [(), ("--restart",)])
def test_work_of_somebody_else_is_not_touched(command_line, pathweave, package_arguments, restart):
    work = command_line.folder / "thesis.work"
    work.mkdir(exist_ok=True)
    for name in ("draft.txt", ".env", "run.json"):
        (work / name).write_text('{"name": "my own run"}')
    before = contents(work)
    refused = pathweave(*package_arguments, "--out", "thesis", *restart)
    assert (refused.status, refused.result["error"]["type"]) == (1, "PackagingError")
    assert "not the unfinished work" in refused.result["error"]["message"]
    assert contents(work) == before


@pytest.mark.parametrize("out", [".", "/"])
def test_a_folder_without_a_name_is_wrong_usage(pathweave, package_arguments, out):
    refused = pathweave(*package_arguments, "--out", out, "--restart")
    assert (refused.status, refused.result["error"]["type"]) == (2, "UsageError")


# Keys


def test_a_bundle_is_signed_with_the_given_key_and_opens_with_that_alone(copied, pathweave, package_arguments):
    keys = copied.parent
    for name in ("mine", "other"):
        made = pathweave("sign", "key", "new", name, "--json")
        assert made.result == {"private_key": f"{name}.key", "public_key": f"{name}.pub"}
    arguments = (*package_arguments, "--steps", 0, "--max-span", 1, "--out", "copied")
    signed = pathweave(*arguments, "--restart", "--key", "mine.key")
    assert signed.result["signed"] is True
    assert Bundle.open(copied, trust=keys / "mine.pub").has_signature
    assert pathweave("inspect", "copied", "--trust", "mine.pub", "--json").result["signed"] is True
    refused = pathweave("inspect", "copied", "--trust", "other.pub", "--json")
    assert (refused.status, refused.result["error"]["type"]) == (1, "SignatureError")
    assert pathweave(*arguments).result["signed"] is True  # and stays so


def test_a_finished_bundle_is_signed_when_a_key_is_given_later(copied, pathweave, package_arguments, tmp_path):
    pathweave("sign", "key", "new", tmp_path / "late")
    before = (copied / "manifest.json").read_bytes()
    assert pathweave(*package_arguments, "--out", "copied").result["signed"] is False
    signed = pathweave(*package_arguments, "--out", "copied", "--key", tmp_path / "late.key").result
    assert (signed["fresh"], signed["signed"]) == (False, True)
    Bundle.open(copied, trust=tmp_path / "late.pub")
    assert (copied / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("content", [None, "no key at all"])
def test_a_key_that_cannot_sign_is_told_before_the_training(command_line, pathweave, package_arguments, content):
    if content is not None:
        (command_line.folder / "broken.key").write_text(content)
    name = "broken.key" if content else "nowhere.key"
    refused = pathweave(*package_arguments, "--out", "unsigned", "--key", name)
    assert refused.result["error"]["type"] == "SignatureError"
    assert name in refused.result["error"]["message"]
    assert not list(command_line.folder.glob("unsigned*"))
