from __future__ import annotations

import numpy as np
import pytest

from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.chooser import Here, choose
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.policies.exits.placed_exits import exit_sets, placed_exits
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.progress import SilentProgress
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Edge, Plan, Subnet

CHEAPEST = Subnet((Edge("o0"), Edge("m1-4"), Edge("o4")))  # passes one exit, which is no good


@pytest.fixture
def tensor(bundle, tiny_bundle):
    return SampleChecker(bundle.manifest).prepare(tiny_bundle.images)


@pytest.fixture
def answers(bundle, runtime, tensor, tiny_bundle):
    workspace, original = Workspace(bundle, runtime), bundle.supernet.original
    return answer_everywhere(workspace, original, tensor, tiny_bundle.labels, use_exits=True, batch=64)


@pytest.fixture
def chosen(bundle, runtime, slow_profile, tensor, tiny_bundle):
    def choose_exits(subnet=None, labels=tiny_bundle.labels, max_drop=0.0, *, confirm=True, memory_mb=None):
        here = Here(Workspace(bundle, runtime), slow_profile, Plan(subnet or bundle.supernet.original))
        goal = Goal(optimise="latency_ms", max_drop=max_drop, memory_mb=memory_mb)
        settings, progress = AdaptationSettings(), SilentProgress()
        return choose(tensor, labels, goal, {"exits"}, here, settings=settings, progress=progress, confirm=confirm)

    return choose_exits


def test_exits_that_are_as_good_as_the_end_are_used(chosen, bundle, runtime, tensor, tiny_bundle):
    for _ in range(20):  # that exits save time is measured, and a busy machine may hide it once
        found = chosen()
        if found.measured is not None:
            break
    assert found.measured.latency_ms < found.measured.without_exits_ms
    assert found.expected.share_early > 0.5
    assert found.expected.accuracy == found.held_out.accuracy == 1.0
    outcome = LoadedPlan(bundle, runtime, found.plan).run(tensor)
    assert np.mean(outcome.answered_by < len(found.plan.exits)) == pytest.approx(found.expected.share_early, abs=0.1)
    assert np.mean(outcome.output.argmax(axis=1) == tiny_bundle.labels) == 1.0


def test_exits_that_do_not_fit_the_memory_are_not_placed(answers, slow_profile):
    costs = slow_profile.cost_model()
    assert placed_exits(answers, costs, memory_bytes=5_000) == []  # each takes 0.01 MB in the slow profile
    assert len(placed_exits(answers, costs, memory_bytes=10_000)) == 1
    assert placed_exits(answers, costs)


def test_a_set_of_exits_for_each_accuracy_that_they_may_cost_without_repetition(answers, slow_profile):
    sets = exit_sets(answers, slow_profile.cost_model(), [0.0, 0.0, 0.5])
    assert len(sets) in (1, 2)
    assert all(choice.threshold < UNREACHABLE_CONFIDENCE for one in sets for choice in one)


def test_an_exit_that_no_confidence_takes_is_kept_for_deadlines(chosen, bundle, runtime, tensor):
    found = chosen(subnet=CHEAPEST)
    assert [choice.threshold for choice in found.plan.exits] == [UNREACHABLE_CONFIDENCE]
    assert (found.expected.share_early, found.measured) == (0.0, None)
    assert np.all(LoadedPlan(bundle, runtime, found.plan).run(tensor).answered_by == 1)


def test_with_a_memory_limit_only_exits_stay_that_confidence_takes(chosen):
    assert chosen(subnet=CHEAPEST, memory_mb=1000.0).plan == Plan(CHEAPEST)
    found = chosen(memory_mb=1000.0, confirm=False)
    assert found.plan.exits
    assert all(choice.threshold < UNREACHABLE_CONFIDENCE for choice in found.plan.exits)


def test_without_labels_the_subnets_own_answers_stand_in(chosen):
    found = chosen(labels=None, confirm=False)
    assert found.full_accuracy == 1.0  # the subnet agrees with itself
    assert found.expected.accuracy == 1.0
