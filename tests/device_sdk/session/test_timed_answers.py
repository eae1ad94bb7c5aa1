from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from device_sdk.errors import (
    ClosedError,
    InfeasibleDeadlineError,
    InputError,
    NoAnswerYetError,
    RuntimeFailedError,
    UsageError,
)
from device_sdk.execution.plan_in_use import Active
from device_sdk.execution.running_calls import ServiceTimes
from device_sdk.runtimes.port import StopSignal
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.timed_answers import Alarm
from device_sdk.supernet.plan import (
    UNREACHABLE_CONFIDENCE,
    Abstain,
    Ask,
    ExitChoice,
    MaxConfidence,
    Plan,
    RemoteRef,
)

pytestmark = pytest.mark.alone

EXITS = ("x1-pooled", "x2-pooled", "x3-pooled")
LONG_MS = 60_000.0
PATIENCE_S = 10.0


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """One state folder, so that the self-test runs once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def model(tiny_bundle, state):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=state) as opened:
        opened.use(timed_plan(opened))
        yield opened


def timed_plan(model, **parts):
    exits = tuple(ExitChoice(name, UNREACHABLE_CONFIDENCE) for name in EXITS)
    return Plan(model.bundle.supernet.original, exits, **parts)


def stated(model, *steps_ms):
    """Have the model believe that its steps took so long, whatever they took."""
    tensor = model.prepare(np.zeros((1, 20, 20, 3), np.uint8))
    times = model._in_use.running().loaded.stepped().times(tensor)
    times.typical_ms = steps_ms
    for _ in range(128):
        times.record(steps_ms)
    return tensor


def test_a_long_deadline_is_answered_as_ever(model, tiny_bundle):
    tensor = model.prepare(tiny_bundle.images)
    found = model.infer(tensor, deadline_ms=LONG_MS)
    assert found.source == ("subnet",) * len(tensor)
    np.testing.assert_allclose(found.output, model.infer(tensor).output, atol=1e-5)
    assert model(tiny_bundle.images, deadline_ms=LONG_MS).labels == found.labels


@pytest.mark.parametrize(
    ("deadline_ms", "source"), [(1100, "exit x1-pooled"), (3100, "exit x2-pooled"), (7100, "exit x3-pooled")]
)
def test_the_last_exit_that_is_sure_to_be_in_time_answers(model, deadline_ms, source):
    tensor = stated(model, 1000.0, 2000.0, 4000.0, 8000.0)
    assert model.infer(tensor, deadline_ms=deadline_ms).source == (source,)
    assert list(model.exits.answer_times_ms(tensor)) == [*(f"exit {name}" for name in EXITS), "subnet"]


def test_a_deadline_below_the_first_exit_names_the_least(model):
    tensor = stated(model, 1000.0, 2000.0, 4000.0, 8000.0)
    with pytest.raises(InfeasibleDeadlineError, match=r"within 500\.00 ms") as caught:
        model.infer(tensor, deadline_ms=500)
    assert 1000 < caught.value.least_ms < 1100
    assert model.infer(tensor, deadline_ms=caught.value.least_ms + 50).source == ("exit x1-pooled",)


def test_a_device_that_was_slow_is_measured_again_when_it_refuses(model):
    tensor = stated(model, 1000.0, 2000.0, 4000.0, 8000.0)
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            assert model.infer(tensor, deadline_ms=900).source == ("subnet",)
            return
        except InfeasibleDeadlineError:
            time.sleep(0.06)
    pytest.fail("the device is still taken to be slow")


@pytest.mark.parametrize("deadline_ms", [0.0, -1.0, float("nan")])
def test_a_deadline_that_is_none_is_refused(model, deadline_ms):
    with pytest.raises(UsageError, match="must be above 0"):
        model.infer(model.prepare(np.zeros((20, 20, 3), np.uint8)), deadline_ms=deadline_ms)


def test_without_exits_the_end_answers_or_nothing(model):
    model.use(Plan(model.bundle.supernet.original))
    tensor = stated(model, 1000.0)
    assert model.infer(tensor, deadline_ms=2000).source == ("subnet",)
    with pytest.raises(InfeasibleDeadlineError):
        model.infer(tensor, deadline_ms=900)


def test_a_plan_that_is_taken_later_is_measured_before_it_is_used(model):
    tensor = model.prepare(np.zeros((2, 20, 20, 3), np.uint8))
    model.infer(tensor, deadline_ms=LONG_MS)
    model.use(Plan(model.bundle.supernet.original, timed_plan(model).exits[:1]))
    assert model._in_use.running().loaded.stepped().measured_batches == [2]


def test_what_live_update_sees_of_ordinary_calls_counts(model):
    tensor = stated(model, 1000.0, 2000.0, 4000.0, 8000.0)
    active = model._in_use.running()
    times = ServiceTimes(threading.Event(), low_ms=0.0, high_ms=1e9)
    model._in_use.exchange(Active(active.plan, active.loaded, times))
    assert model.exits.answer_times_ms(tensor)["subnet"] == 15_000
    for _ in range(5):
        times.record(45_000.0)
    assert model.exits.answer_times_ms(tensor)["subnet"] == pytest.approx(45_000)
    with pytest.raises(InfeasibleDeadlineError):
        model.infer(tensor, deadline_ms=2900)


def test_hard_samples_are_marked_and_never_sent(model, tiny_bundle):
    tensor = model.prepare(tiny_bundle.images)
    everything = MaxConfidence(UNREACHABLE_CONFIDENCE)
    for hard, mark in ((Abstain(everything), "abstained"), (Ask(everything, RemoteRef("any")), "fallback")):
        model.use(timed_plan(model, hard=hard))
        assert set(model.infer(tensor, deadline_ms=LONG_MS).source) == {mark}
        with model.stream(tensor) as running:
            assert set(running.wait().source) == {mark}


def test_left_alone_an_anytime_run_ends_with_the_usual_answer(model, tiny_bundle):
    tensor = model.prepare(tiny_bundle.images[:3])
    with model.stream(tensor) as running:
        answer = running.wait(PATIENCE_S)
    assert running.done
    assert answer is running.latest()
    np.testing.assert_allclose(answer.output, model.infer(tensor).output, atol=1e-5)


def test_raw_images_can_be_started_too(model, tiny_bundle):
    with model.stream(tiny_bundle.images[0]) as running:
        assert running.wait(PATIENCE_S).labels == model(tiny_bundle.images[0]).labels


def test_input_that_is_none_fails_where_it_is_started(model):
    with pytest.raises(InputError):
        model.stream(np.zeros((1, 3), np.float32))


class Paused:
    """Holds the steps of a model's plan in use until ``go_on``; ``reached`` counts those that began."""

    def __init__(self, model):
        self.reached, self.passed = threading.Semaphore(0), threading.Semaphore(0)
        for step in (stepped := model._in_use.running().loaded.stepped()).steps:
            stepped.steps[step.number] = type(step)(step.number, self._holding(step.stretch), step.exit)

    def _holding(self, stretch):
        owner = self

        class Holding:
            def run_until(self, inputs, stop):
                owner.reached.release()
                with stop.ending_by(owner.passed.release):
                    assert owner.passed.acquire(timeout=PATIENCE_S)
                return stretch.run_until(inputs, stop)

        return Holding()


def test_the_best_answer_so_far_is_there_at_any_moment(model, tiny_bundle):
    paused = Paused(model)
    with model.stream(tiny_bundle.images[:2]) as running:
        before = ""
        for name in EXITS:
            assert paused.reached.acquire(timeout=PATIENCE_S)
            if name == EXITS[0]:
                assert not running.answered
                with pytest.raises(NoAnswerYetError, match="no exit was reached yet"):
                    running.latest()
            else:
                assert running.latest().source == (f"exit {before}",) * 2
            before = name
            paused.passed.release()
        paused.passed.release()
        assert running.wait(PATIENCE_S).source == ("subnet",) * 2


def test_it_can_be_stopped_from_another_thread(model, tiny_bundle):
    paused = Paused(model)
    with model.stream(tiny_bundle.images[:1]) as running:
        paused.passed.release()
        assert running.wait_first(PATIENCE_S).source == ("exit x1-pooled",)
        assert paused.reached.acquire(timeout=PATIENCE_S)
        stopper = threading.Thread(target=running.stop)
        stopper.start()
        stopper.join()
        assert running.wait(PATIENCE_S).source == ("exit x1-pooled",)
        running.stop()
    assert running.done


def test_stopped_before_the_first_exit_it_has_no_answer(model, tiny_bundle):
    paused = Paused(model)
    running = model.stream(tiny_bundle.images[:1])
    assert paused.reached.acquire(timeout=PATIENCE_S)
    running.stop()
    with pytest.raises(NoAnswerYetError, match="stopped before its first exit"):
        running.wait(PATIENCE_S)
    with pytest.raises(NoAnswerYetError):
        running.wait_first(0.0)


def test_the_block_ends_it_and_leaves_nothing_running(model, tiny_bundle):
    paused = Paused(model)
    with model.stream(tiny_bundle.images[:1]) as running:
        assert paused.reached.acquire(timeout=PATIENCE_S)
    assert running.done


def test_what_fails_in_the_thread_is_raised_where_the_answer_is_asked_for(model, tiny_bundle):
    loaded = model._in_use.running().loaded
    loaded.stepped()
    loaded.close()
    running = model.stream(tiny_bundle.images[:1])
    with pytest.raises(RuntimeFailedError, match="closed"):
        running.wait(PATIENCE_S)


def test_a_closed_model_neither_starts_nor_answers_in_time(tiny_bundle, state):
    model = AdaptiveModel.open(tiny_bundle.folder, state_folder=state)
    model.close()
    with pytest.raises(ClosedError):
        model.stream(tiny_bundle.images[0])
    with pytest.raises(ClosedError):
        model(tiny_bundle.images[0], deadline_ms=5)


def test_a_run_that_is_slower_than_expected_ends_with_the_step_before(model):
    tensor = stated(model, 0.1, 0.1, 0.1, 0.1)
    paused = Paused(model)
    paused.passed.release()  # the first step passes; the second does not end by itself
    answer = model.infer(tensor, deadline_ms=500)  # a busy machine takes its time before the first step
    assert answer.source == ("exit x1-pooled",)


def test_alarms_ring_in_the_order_of_their_times():
    alarm, signals = Alarm(), [StopSignal() for _ in range(3)]
    now_s = time.perf_counter()
    for number, after_s in ((0, 0.06), (1, 0.02), (2, 0.04)):
        alarm.at(now_s + after_s, signals[number])
    deadline_s = now_s + PATIENCE_S
    while not signals[0].is_set and time.perf_counter() < deadline_s:
        if signals[2].is_set:
            assert signals[1].is_set
        time.sleep(0.001)
    assert all(signal.is_set for signal in signals)
    assert time.perf_counter() - now_s >= 0.06


def test_a_closed_alarm_sets_nothing_and_leaves_no_thread():
    alarm, signal = Alarm(), StopSignal()
    alarm.at(time.perf_counter() + 60, signal)
    alarm.close()
    alarm.close()
    assert not signal.is_set
    assert not [one for one in threading.enumerate() if one.name == "pathweave-deadline" and one is alarm._thread]
