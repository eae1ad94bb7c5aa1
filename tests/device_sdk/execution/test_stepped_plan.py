from __future__ import annotations

import threading

import numpy as np
import pytest

from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.running_calls import PlanRetired
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import StopSignal
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Plan

EXITS = ("x1-pooled", "x2-pooled", "x3-pooled")


class SteppingRuntime(OnnxRuntime):
    """ONNX Runtime that calls ``before`` with the number of the stretch, in the order of loading, before it runs."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.loaded = 0
        self.before = lambda number: None

    def load(self, stretch):
        inner, owner, number = super().load(stretch), self, self.loaded
        self.loaded += 1

        class Stepping:
            def run(self, inputs):
                owner.before(number)
                return inner.run(inputs)

            def run_until(self, inputs, stop):
                owner.before(number)
                return inner.run_until(inputs, stop)

            def close(self):
                inner.close()

        return Stepping()


@pytest.fixture
def tensor(bundle, tiny_bundle):
    return SampleChecker(bundle.manifest).prepare(tiny_bundle.images)


@pytest.fixture
def plan(bundle):
    """Three exits that no confidence takes."""
    return Plan(bundle.supernet.original, tuple(ExitChoice(name, UNREACHABLE_CONFIDENCE) for name in EXITS))


@pytest.fixture
def leaving(bundle, runtime, plan, tensor):
    """The same exits; half of the samples leave at the second."""
    at_exit = runtime.load(bundle.stretch(plan.subnet.edges[:2], plan.exits[1])).run([tensor])[-1]
    middle = ExitChoice(EXITS[1], float(np.median(confidence(at_exit))))
    return Plan(plan.subnet, (plan.exits[0], middle, plan.exits[2]))


def run(loaded, tensor, **settings):
    settings.setdefault("stop", StopSignal())
    return loaded.stepped().run(tensor, **settings)


def test_left_alone_it_answers_as_the_plan_does(bundle, runtime, leaving, tensor):
    loaded = LoadedPlan(bundle, runtime, leaving)
    ordinary, stepped = loaded.run(tensor), run(loaded, tensor)
    assert np.array_equal(ordinary.answered_by, stepped.answered_by)
    assert set(ordinary.answered_by) == {1, 3}
    np.testing.assert_allclose(stepped.output, ordinary.output, atol=1e-5)


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_it_ends_with_the_step_that_was_chosen(bundle, runtime, plan, tensor, last):
    outcome = run(LoadedPlan(bundle, runtime, plan), tensor, last=last)
    exit_ = plan.exits[last] if last < 3 else None
    edges = plan.subnet.edges[: last + 1] if last < 3 else plan.subnet.edges
    expected = runtime.load(bundle.stretch(edges, exit_)).run([tensor])[-1]
    assert np.all(outcome.answered_by == last)
    np.testing.assert_allclose(outcome.output, expected, atol=1e-5)


def test_every_exit_answers_every_sample_that_did_not_leave(bundle, runtime, leaving, tensor):
    seen = []
    run(LoadedPlan(bundle, runtime, leaving), tensor, answered=seen.append)
    assert [set(outcome.answered_by) for outcome in seen] == [{0}, {1}, {1, 2}, {1, 3}]


def test_ordinary_runs_neither_load_nor_run_exits_that_no_confidence_takes(bundle, plan, tensor):
    runtime = SteppingRuntime()
    loaded = LoadedPlan(bundle, runtime, plan)
    loaded.run(tensor)
    assert runtime.loaded == 1
    loaded.stepped()
    assert runtime.loaded == 1 + 4


def test_nothing_is_loaded_twice_where_all_exits_answer_by_confidence(bundle, plan, tensor):
    runtime = SteppingRuntime()
    all_taken = Plan(plan.subnet, tuple(ExitChoice(name, 0.9) for name in EXITS))
    loaded = LoadedPlan(bundle, runtime, all_taken)
    assert runtime.loaded == 4
    run(loaded, tensor)
    assert runtime.loaded == 4


@pytest.mark.parametrize("at", [1, 2, 3])
def test_stopped_within_a_step_it_has_the_answer_before(bundle, plan, tensor, at):
    runtime, stop = SteppingRuntime(), StopSignal()
    stepped = LoadedPlan(bundle, runtime, plan).stepped()
    runtime.before = lambda number: stop.set() if number == 1 + at else None
    outcome = stepped.run(tensor, stop=stop)
    assert np.all(outcome.answered_by == at - 1)


def test_stopped_before_the_first_answer_it_has_none(bundle, plan, tensor):
    runtime, stop = SteppingRuntime(), StopSignal()
    stepped = LoadedPlan(bundle, runtime, plan).stepped()
    runtime.before = lambda number: stop.set()
    assert stepped.run(tensor, stop=stop) is None


def test_no_step_begins_that_may_not(bundle, runtime, plan, tensor):
    outcome = run(LoadedPlan(bundle, runtime, plan), tensor, may_begin=lambda step: step < 2)
    assert np.all(outcome.answered_by == 1)


def test_times_are_measured_once_per_batch_size_and_follow_the_runs(bundle, runtime, plan, tensor):
    loaded = LoadedPlan(bundle, runtime, plan)
    one, two = loaded.stepped().times(tensor[:1]), loaded.stepped().times(tensor[:2])
    assert loaded.stepped().times(tensor[1:2]) is one
    assert loaded.stepped().measured_batches == [1, 2]
    assert all(ms > 0 for ms in (*one.typical_ms, *two.typical_ms))
    before = len(one._last())
    run(loaded, tensor[:1], last=1)
    assert [len(run_ms) for run_ms in one._last()[before:]] == [2]


def test_the_times_of_a_batch_that_became_smaller_do_not_count(bundle, runtime, leaving, tensor):
    loaded = LoadedPlan(bundle, runtime, leaving)
    times = loaded.stepped().times(tensor)
    run(loaded, tensor)
    assert len(times._last()[-1]) == 2  # half of the samples left at the second exit


def test_hurried_calls_end_with_the_exit_that_they_reach(bundle, leaving, tensor):
    for method in ("run", "stepped"):
        runtime = SteppingRuntime()
        loaded = LoadedPlan(bundle, runtime, leaving)
        loaded.stepped()
        first_loaded = 0 if method == "run" else 2  # the plan's own two segments come before the four steps
        runtime.before = lambda number, first=first_loaded, loaded=loaded: loaded.hurry() if number == first else None
        outcome = loaded.run(tensor) if method == "run" else run(loaded, tensor)
        assert np.all(outcome.answered_by == (1 if method == "run" else 0)), method


def test_hurried_within_a_later_segment_the_answers_of_the_exit_before_count(bundle, leaving, tensor):
    runtime = SteppingRuntime()
    loaded = LoadedPlan(bundle, runtime, leaving)
    runtime.before = lambda number: loaded.hurry() if number == 1 else None
    outcome = loaded.run(tensor)
    at_exit = OnnxRuntime(threads=1).load(bundle.stretch(leaving.subnet.edges[:2], leaving.exits[1])).run([tensor])[-1]
    assert np.all(outcome.answered_by == 1)
    np.testing.assert_allclose(outcome.output, at_exit, atol=1e-5)


def test_a_retired_plan_ends_what_runs_and_begins_nothing(bundle, plan, tensor):
    runtime = SteppingRuntime()
    loaded = LoadedPlan(bundle, runtime, plan)
    begun, go_on = threading.Event(), threading.Event()
    outcomes = []

    def pause(number):
        begun.set()
        assert go_on.wait(10)

    runtime.before = pause
    thread = threading.Thread(target=lambda: outcomes.append(loaded.run(tensor)))
    thread.start()
    assert begun.wait(10)
    loaded.retire()
    with pytest.raises(PlanRetired):
        loaded.run(tensor)
    go_on.set()
    thread.join()
    assert len(outcomes[0].output) == len(tensor)
    with pytest.raises(PlanRetired):
        run(loaded, tensor)
