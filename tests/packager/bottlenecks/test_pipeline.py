"""A bundle with bottlenecks: its graph, its answers, and what a split makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.measured_splits.decision import choose
from device_sdk.policies.measured_splits.fastest import SplitLimits
from device_sdk.policies.measured_splits.measuring import SplitScore
from device_sdk.profiling.profile import profile
from device_sdk.profiling.timing import Patience
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Plan
from device_sdk.tasks import answer_task
from packager.bottlenecks.pipeline import PREFIX, package_with_bottlenecks
from packager.inputs.weights import read_state_dict


@pytest.fixture(scope="module")
def workspace(narrow_bundle):
    return Workspace(narrow_bundle, OnnxRuntime(threads=1))


def encoders(bundle):
    """The blob of each encoder."""
    return {block.id: block.renditions[0].blob for block in bundle.supernet.blocks if block.kind == "encoder"}


def test_an_encoder_and_a_decoder_surround_each_bottleneck(narrow_bundle):
    supernet = narrow_bundle.supernet
    assert 1 <= len(supernet.bottlenecks) <= 2
    for position in supernet.bottlenecks:
        [encoder] = [block for block in supernet.blocks if block.end == position]
        [decoder] = [block for block in supernet.blocks if block.start == position]
        assert (encoder.kind, decoder.kind) == ("encoder", "decoder")
        wide, narrow = supernet.cut_points[encoder.start], supernet.cut_points[position]
        assert narrow.nbytes < wide.nbytes
        originals = [block for block in supernet.blocks if block.is_original]
        assert position not in {place for block in originals for place in (block.start, block.end)}


def test_every_fragment_answers_as_its_golden_vector_says(narrow_bundle, workspace):
    run_self_test(workspace)


def test_the_original_path_answers_as_before(narrow_bundle, make_job, workspace):
    job, original = make_job(), narrow_bundle.supernet.original
    images = job.prepared(count=20)
    answers = workspace.load_stretch(original.edges, batch=len(images)).run([images])[-1]
    expected = job.model.module(torch.from_numpy(images)).detach().numpy()
    np.testing.assert_allclose(answers, expected, atol=1e-3)


def test_the_report_notes_what_each_loses(narrow_bundle):
    notes = [note for note in narrow_bundle.manifest.notes if note.startswith("bottleneck at cut point")]
    assert len(notes) == len(narrow_bundle.supernet.bottlenecks)
    assert narrow_bundle.manifest.provenance.recipe["bottlenecks"] == 2


def test_a_split_crosses_there_where_inputs_stay_on_the_device_and_little_is_lost(narrow_bundle, workspace, digits):
    data = digits("search", 80)
    inputs = SampleChecker(narrow_bundle.manifest).prepare(data.images)
    supernet = narrow_bundle.supernet
    judge = SplitScore(
        workspace, supernet.original, inputs, data.labels, answer_task(narrow_bundle.manifest.task), certainty=None
    )
    costs = profile(
        workspace, progress=SilentProgress(), patience=Patience(rounds=2, precision=0.5, limit_s=0.2)
    ).cost_model()
    found = choose(
        narrow_bundle,
        Plan(supernet.original),
        costs,
        costs,
        Uplink(0.01),
        model_name="digits:tail",
        source="a test's",
        sends_input=False,
        limits=SplitLimits(max_drop=1.0, judge=judge),
        device_factor=1e6,
    )
    narrow = [cost for cost in found.costs if cost.position in supernet.bottlenecks]
    assert {cost.position for cost in narrow} == set(supernet.bottlenecks)
    least = {cost.position: cost.bytes_sent for cost in narrow if set(cost.bits) == {8}}
    for position, size in least.items():
        [encoder] = [block for block in supernet.blocks if block.end == position]
        plain = next(cost for cost in found.costs if cost.position == encoder.start and set(cost.bits) == {8})
        assert size < plain.bytes_sent
        one = next(cost for cost in narrow if cost.position == position and set(cost.bits) == {8})
        assert judge.drop(one) < 0.5
        few, many = (judge.coding(position, bits, False) for bits in (2, 8))
        assert few.error > many.error > 0


def test_the_saved_weights_make_the_same_bundle_without_training(narrow_bundle, make_job, weights_file, tmp_path):
    weights = read_state_dict(weights_file)
    assert any(name.startswith(PREFIX) for name in weights)
    job = replace(make_job(steps=0, renditions=("fp32", "int8")), branch_weights=weights)
    package_with_bottlenecks(job, tmp_path / "again")
    again = Bundle.open(tmp_path / "again")
    assert again.supernet.bottlenecks == narrow_bundle.supernet.bottlenecks
    assert encoders(again) == encoders(narrow_bundle)


def test_weights_of_a_cut_point_that_is_not_there_are_refused(make_job, weights_file, tmp_path):
    weights = {name.replace(PREFIX, f"{PREFIX}9"): value for name, value in read_state_dict(weights_file).items()}
    job = replace(make_job(steps=0), branch_weights=weights)
    with pytest.raises(UsageError, match="the branch weights have a bottleneck at cut point 9"):
        package_with_bottlenecks(job, tmp_path / "wrong")


def test_a_finished_bundle_is_found_again(narrow_bundle, make_job):
    found = package_with_bottlenecks(make_job(renditions=("fp32", "int8")), narrow_bundle.folder)
    assert not found.fresh


def test_the_command_packages_bottlenecks(pathweave):
    found = pathweave(
        *("package", "--model", "users_models:small", "--data", "digits#train", "--val", "digits#search"),
        *("--steps", "0", "--exits", "0", "--max-span", "1", "--bottlenecks", "1", "--out", "narrow", "--json"),
    )
    assert found.status == 0, found.err
    assert any("bottleneck" in note for note in found.result["notes"])


def test_a_family_has_no_bottlenecks(pathweave):
    found = pathweave(
        *("package", "--model", "users_models:small", "--member", "users_models:small", "--bottlenecks", "1"),
        *("--data", "digits#train", "--val", "digits#search", "--steps", "0", "--out", "family"),
    )
    assert found.status == 2
    assert "--bottlenecks does not go with --member" in found.err
