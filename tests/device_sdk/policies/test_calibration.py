from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import InputError, UsageError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.calibration import CalibrationSettings, calibrate_plan
from device_sdk.progress import SilentProgress
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Edge, Plan, Subnet

CHEAPEST = Subnet((Edge("o0"), Edge("m1-4"), Edge("o4")))  # passes one exit, which is no good


@pytest.fixture
def tensor(bundle, tiny_bundle):
    return SampleChecker(bundle.manifest).prepare(tiny_bundle.images)


@pytest.fixture
def calibrated(bundle, runtime, slow_profile, tensor, tiny_bundle):
    def run(subnet=None, labels=tiny_bundle.labels, inputs=tensor, **settings):
        return calibrate_plan(
            Workspace(bundle, runtime),
            slow_profile,
            subnet or bundle.supernet.original,
            inputs,
            labels,
            settings=CalibrationSettings(**settings),
            progress=SilentProgress(),
        )

    return run


def test_exits_that_are_as_good_as_the_end_are_used(calibrated, bundle, runtime, tensor, tiny_bundle):
    for _ in range(20):  # that exits save time is measured, and a busy machine may hide it once
        found = calibrated(accuracy_drop=0.0)
        if found.mean_ms is not None:
            break
    assert found.plan.exits
    assert found.share_early > 0.5
    assert found.accuracy >= found.accuracy_without_exits
    assert found.mean_ms < found.without_exits_ms
    outcome = LoadedPlan(bundle, runtime, found.plan).run(tensor)
    assert np.mean(outcome.answered_by < len(found.plan.exits)) == pytest.approx(found.share_early)
    assert np.mean(outcome.output.argmax(axis=1) == tiny_bundle.labels) == pytest.approx(found.accuracy)


def test_without_exits_nobody_leaves_early(calibrated):
    found = calibrated(use_exits=False)
    assert (found.plan.exits, found.share_early, found.mean_ms) == ((), 0.0, None)


def test_exits_that_do_not_fit_the_memory_are_not_used(calibrated):
    assert calibrated(exit_memory_mb=0.005).plan.exits == ()  # each takes 0.01 MB in the slow profile
    assert len(calibrated(exit_memory_mb=0.01).plan.exits) == 1


def test_an_exit_that_no_confidence_takes_is_kept_for_deadlines(calibrated, bundle, runtime, tensor):
    found = calibrated(subnet=CHEAPEST)
    assert [choice.threshold for choice in found.plan.exits] == [UNREACHABLE_CONFIDENCE]
    assert (found.share_early, found.mean_ms) == (0.0, None)
    assert np.all(LoadedPlan(bundle, runtime, found.plan).run(tensor).answered_by == 1)


def test_without_timed_exits_only_those_stay_that_confidence_takes(calibrated):
    assert calibrated(subnet=CHEAPEST, timed_exits=False).plan == Plan(CHEAPEST)
    found = calibrated(accuracy_drop=0.0, timed_exits=False)
    assert all(choice.threshold < UNREACHABLE_CONFIDENCE for choice in found.plan.exits)


def test_timed_exits_change_no_other_choice(calibrated):
    found, without = (calibrated(accuracy_drop=0.0, confirm=False, timed_exits=timed) for timed in (True, False))
    assert set(without.plan.exits) <= set(found.plan.exits)
    assert (found.share_early, found.accuracy) == (without.share_early, without.accuracy)


def test_labels_may_be_missing(calibrated):
    found = calibrated(labels=None, accuracy_drop=0.0)
    assert found.accuracy_without_exits == 1.0  # the subnet agrees with itself
    assert found.accuracy == 1.0


@pytest.mark.parametrize("share", [0.1, 0.35])
def test_the_wished_share_counts_as_hard(calibrated, share, bundle, runtime, tensor):
    from device_sdk.supernet.deciders.port import confidence

    found = calibrated(use_exits=False, escalated_share=share)
    assert found.share_escalated == pytest.approx(share, abs=1 / found.samples)
    output = LoadedPlan(bundle, runtime, found.plan).run(tensor).output
    assert np.mean(confidence(output) < found.plan.hard_threshold) == pytest.approx(found.share_escalated)


def test_share_zero_escalates_nothing_and_share_one_everything_that_reaches_the_end(calibrated):
    assert calibrated(escalated_share=0.0).plan.hard_threshold is None
    everything = calibrated(escalated_share=1.0)
    assert everything.share_escalated + everything.share_early == pytest.approx(1.0)
    assert everything.plan.hard_threshold > 1


@pytest.mark.parametrize(
    "settings", [{"escalated_share": 1.5}, {"escalated_share": -0.1}, {"accuracy_drop": 2}, {"exit_memory_mb": -1.0}]
)
def test_shares_that_are_none_are_refused(settings):
    with pytest.raises(UsageError, match="it "):
        CalibrationSettings(**settings)


def test_no_samples_and_labels_that_do_not_match_are_refused(calibrated, tensor):
    with pytest.raises(InputError, match="no samples"):
        calibrated(inputs=tensor[:0], labels=None)
    with pytest.raises(InputError, match="60 samples and labels"):
        calibrated(labels=np.zeros(3, np.int64))
