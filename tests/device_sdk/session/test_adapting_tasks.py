"""Maps and boxes: subnets are searched by the task's own score, with targets or with the model's own answers."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import Task, encode_manifest
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.errors import InputError, UsageError
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.signing import signatures
from device_sdk.supernet.goal import Goal
from device_sdk.tasks import answer_task
from tests.device_sdk.tiny_bundle import CLASSES, write_tiny_bundle
from tests.device_sdk.tiny_segmenter import write_tiny_segmenter

SETTINGS = AdaptationSettings(time_limit_s=5.0)
ANY = Goal(latency_ratio=3.0)


OF_WHOLE_SAMPLES = {
    "multilabel": Task("multilabel", CLASSES),
    "regression": Task("regression", CLASSES, "values"),
    "embedding": Task("embedding", (), "vector"),
}


def write_bundle(kind, folder):
    """A tiny bundle for this kind of task: of a whole sample, the classifier's three values mean something else."""
    (folder / "key").write_bytes(signatures.new_key_pair()[0])
    if kind not in OF_WHOLE_SAMPLES:
        write_tiny_segmenter(folder / "bundle", folder / "key", boxes=kind == "detection", added=True)
        return
    write_tiny_bundle(folder / "bundle", folder / "key")
    manifest = decode_manifest((folder / "bundle" / "manifest.json").read_bytes())
    data = encode_manifest(msgspec.structs.replace(manifest, task=OF_WHOLE_SAMPLES[kind], exits=()))
    (folder / "bundle" / "manifest.json").write_bytes(data)
    (folder / "bundle" / "manifest.sig").write_bytes(signatures.sign(data, private_key=folder / "key"))


@pytest.fixture(scope="module", params=["segmentation", "detection", *OF_WHOLE_SAMPLES])
def opened(request, tmp_path_factory, tiny_bundle):
    folder = tmp_path_factory.mktemp(request.param)
    write_bundle(request.param, folder)
    with AdaptiveModel.open(folder / "bundle", state_folder=folder / "state") as model:
        task = answer_task(Bundle.open(folder / "bundle").manifest.task)
        targets = task.stand_in(model(tiny_bundle.images).output)
        yield SimpleNamespace(model=model, task=task, images=tiny_bundle.images, targets=targets)


def test_within_a_wide_budget_nothing_is_lost(opened):
    found = opened.model.adapt(opened.images, ANY, labels=opened.targets, take=False, settings=SETTINGS)
    assert found.expected.accuracy == pytest.approx(1.0, abs=0.05)
    assert found.full_accuracy == pytest.approx(1.0)
    assert len(found.pool) > 2
    assert min(one.accuracy for one in found.pool) < 0.999  # added blocks of random weights lose


def test_the_answers_of_the_model_stand_in_for_targets(opened):
    found = opened.model.adapt(opened.images, ANY, take=False, settings=SETTINGS)
    assert found.full_accuracy == pytest.approx(1.0)
    assert found.plan.class_prior is None


def test_what_is_taken_answers(opened):
    least_ms = opened.model.adapt(opened.images, ANY, labels=opened.targets, settings=SETTINGS).measured.latency_ms
    assert least_ms > 0
    answer = opened.model(opened.images[:4])
    assert answer.output.shape[0] == 4
    score = opened.task.scores(answer.output, opened.targets[:4]).mean()
    assert score == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("kinds", [{"subnets", "cascade"}, {"subnets", "abstain"}])
def test_plans_that_need_a_class_for_each_sample_are_refused(opened, kinds):
    with pytest.raises(UsageError, match="needs a classifier"):
        opened.model.adapt(opened.images, ANY, kinds, opened.targets, take=False)


def test_a_goal_that_is_no_budget_is_refused_with_what_works(opened):
    with pytest.raises(UsageError, match="adapts to a budget") as caught:
        opened.model.adapt(opened.images, Goal(optimise="latency_ms", max_drop=0.01), labels=opened.targets, take=False)
    assert "Goal(latency_ms=" in caught.value.hint


def test_labels_of_another_task_are_refused(opened):
    with pytest.raises(InputError, match="targets must be"):
        opened.model.adapt(opened.images, ANY, labels=np.zeros(len(opened.images), np.int64), take=False)
