"""A plan's prior corrects all logits, wherever they come from, before anything decides by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.execution.loaded_segments import corrected, logit_offsets
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Plan, Prior, decode_plan, encode_plan

PRIOR = Prior((0.5, -2.0, 1.0), temperature=2.0)
EXITS = ("x1-pooled", "x2-pooled", "x3-pooled")


@pytest.fixture
def workspace(bundle, runtime) -> Workspace:
    return Workspace(bundle, runtime)


@pytest.fixture
def tensor(bundle, tiny_bundle):
    return SampleChecker(bundle.manifest).prepare(tiny_bundle.images[:12])


def run(workspace: Workspace, plan: Plan, tensor):
    loaded = workspace.load_plan(plan)
    try:
        return loaded.run(tensor)
    finally:
        loaded.close()


def test_the_end_of_a_plan_is_corrected_by_temperature_times_log_ratio(workspace, tensor):
    plan = Plan(workspace.supernet.original)
    plain, under = (run(workspace, one, tensor).output for one in (plan, plan.with_prior(PRIOR)))
    np.testing.assert_allclose(under, plain + np.array([1.0, -4.0, 2.0], dtype=np.float32), rtol=1e-6)


@pytest.mark.parametrize("cap_bytes", [None, 12_000_000])
def test_exits_decide_by_corrected_logits_also_in_pages(bundle, runtime, tensor, cap_bytes):
    workspace = Workspace(bundle, runtime, cap_bytes)
    never = Plan(bundle.supernet.original, (ExitChoice("x2-pooled", UNREACHABLE_CONFIDENCE),))
    evidence = answer_everywhere(
        replace(workspace, prior=PRIOR), never.subnet, tensor, None, use_exits=True, batch=len(tensor)
    )
    at_exit = dict(zip((one.id for one in evidence.exits), evidence.logits, strict=False))["x2-pooled"]
    threshold = float(np.median(confidence(at_exit)))
    plan = Plan(never.subnet, (ExitChoice("x2-pooled", threshold),)).with_prior(PRIOR)
    outcome = run(workspace, plan, tensor)
    leaves = confidence(at_exit) >= threshold
    assert outcome.answered_by.tolist() == [0 if one else 1 for one in leaves]
    expected = np.where(leaves[:, np.newaxis], at_exit, evidence.logits[-1])
    np.testing.assert_allclose(outcome.output, expected, atol=1e-4)


def test_answers_by_a_deadline_are_corrected_too(workspace, tensor):
    exits = tuple(ExitChoice(name, UNREACHABLE_CONFIDENCE) for name in EXITS)
    plan = Plan(workspace.supernet.original, exits)
    first = []
    for one in (plan, plan.with_prior(PRIOR)):
        loaded = workspace.load_plan(one)
        outcome = loaded.stepped().run(tensor, last=0, stop=_never())
        assert outcome is not None
        first.append(outcome.output)
        loaded.close()
    np.testing.assert_allclose(first[1], first[0] + logit_offsets(PRIOR), rtol=1e-5)


def _never():
    from device_sdk.runtimes.port import StopSignal

    return StopSignal()


def test_nothing_changes_without_a_prior(workspace, tensor):
    logits = run(workspace, Plan(workspace.supernet.original), tensor).output
    assert corrected(logits, None) is logits
    assert corrected(None, PRIOR) is None


def test_a_plan_without_a_prior_is_written_as_before_there_were_any(workspace):
    plan = Plan(workspace.supernet.original)
    assert b"prior" not in encode_plan(plan)
    assert decode_plan(encode_plan(plan)) == plan
    under = plan.with_prior(PRIOR)
    assert decode_plan(encode_plan(under)) == under
    assert under.with_prior(None) == plan


def test_a_prior_of_other_classes_is_refused(bundle):
    with pytest.raises(UsageError, match="prior is of 2 classes, the model has 3"):
        bundle.supernet.check_plan(Plan(bundle.supernet.original).with_prior(Prior((0.0, 0.0))))
    with pytest.raises(UsageError, match="this is no plan"):
        decode_plan(encode_plan(Plan(bundle.supernet.original).with_prior(PRIOR)).replace(b"-2.0", b"1e9"))


@pytest.mark.slow
def test_a_model_adapted_to_one_class_answers_with_its_prior_and_keeps_it(tiny_bundle, tmp_path):
    only = np.flatnonzero(tiny_bundle.labels == 1)
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path) as model:
        generous = Goal(latency_ms=1000.0)
        images, labels = tiny_bundle.images[np.tile(only, 3)], tiny_bundle.labels[np.tile(only, 3)]
        prior = model.adapt(images, generous, labels=labels).plan.class_prior
        assert prior is not None
        assert int(np.argmax(prior.log_ratios)) == 1
        bare = run(Workspace(model.bundle, model._runtime), Plan(model.plan.subnet), model.prepare(images[:2]))
        np.testing.assert_allclose(model(images[:2]).output, bare.output + logit_offsets(prior), rtol=1e-4, atol=1e-4)
        calibrated = model.adapt(
            tiny_bundle.images, Goal(optimise="latency_ms", max_drop=0.005), {"exits"}, tiny_bundle.labels
        )
        assert calibrated.plan.class_prior == prior
        model.use(model.plan.with_prior(None))
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path) as again:
        assert again.plan.class_prior is None
