"""A bundle with joint exits: the model as it was, the copy beside it, plans that leave the copy early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.runtimes import make_runtime
from packager.inputs.weights import read_state_dict
from packager.joint_exits.pipeline import package_with_joint_exits


def test_the_bundle_holds_the_model_and_its_copy_with_exits(bundle, make_job):
    supernet = bundle.supernet
    whole, early = supernet.originals
    assert [one.name for one in supernet.members] == ["digits", "digits-early"]
    assert supernet.exits_along(whole) == ()
    assert len(supernet.exits_along(early)) == 2
    assert supernet.original == whole
    assert any("joint training" in note for note in bundle.manifest.notes)


def test_the_model_answers_as_before(bundle, make_job):
    job = make_job()
    images, subnet = job.prepared(count=30), bundle.supernet.original
    workspace = Workspace(bundle, make_runtime("onnxruntime", threads=1))
    found = answer_everywhere(workspace, subnet, images, None, use_exits=False, batch=30)
    with torch.no_grad():
        expected = job.model.module(torch.from_numpy(images)).numpy()
    assert np.allclose(found.logits[-1], expected, atol=1e-3)


def test_stored_weights_make_the_same_bundle_without_training(bundle, make_job, weights_file, tmp_path):
    job = replace(make_job(steps=0), branch_weights=read_state_dict(weights_file))
    package_with_joint_exits(job, tmp_path / "again")
    again = Bundle.open(tmp_path / "again")
    assert [one.id for one in again.manifest.exits] == [one.id for one in bundle.manifest.exits]
    before = {one.id: one.accuracy for one in bundle.manifest.exits}
    assert {one.id: one.accuracy for one in again.manifest.exits} == pytest.approx(before, abs=0.01)


def test_devices_consider_leaving_the_copy_early(bundle):
    (early,) = bundle.supernet.members_with_exits
    assert early == bundle.supernet.originals[1]


def test_a_finished_bundle_is_not_made_again(bundle, make_job):
    assert not package_with_joint_exits(make_job(), bundle.folder).packaged.fresh


def test_bottlenecks_beside_joint_exits_are_refused(make_job, tmp_path):
    with pytest.raises(UsageError, match="do not go together"):
        package_with_joint_exits(make_job(bottlenecks=1), tmp_path / "out")


def test_joint_exits_need_a_length(make_job, tmp_path):
    with pytest.raises(UsageError, match="need steps"):
        package_with_joint_exits(make_job(steps=0), tmp_path / "out")
