from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from device_sdk.errors import BudgetError, ClosedError, MeasurementError, UsageError
from device_sdk.execution.paging import least_memory_cap_bytes
from device_sdk.execution.plan_in_use import Active
from device_sdk.live.elastic import ElasticSettings
from device_sdk.logs.adaptation_log import Resized, read_log
from device_sdk.memory_pressure import MemoryReading
from device_sdk.policies.exits.elastic_plan import least_plan_bytes, whole_plan_bytes
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Plan

PATIENCE_S = 20.0


class FakePressure:
    """Says what it is told to."""

    name = "fake"

    def __init__(self, available_bytes: int) -> None:
        self.available_bytes = available_bytes
        self.failure: MeasurementError | None = None

    def read(self) -> MemoryReading:
        if self.failure is not None:
            raise self.failure
        return MemoryReading(self.available_bytes)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def model(elastic_heavy, state):
    with AdaptiveModel.open(elastic_heavy.folder, state_folder=state, memory_cap_mb=200) as opened:
        opened.use(plan_of(opened))
        yield opened


def plan_of(model):
    return Plan(
        model.bundle.supernet.original, tuple(ExitChoice(name, UNREACHABLE_CONFIDENCE) for name in ("x1", "x3"))
    )


def inputs_of(model, count=1):
    shape = model.bundle.supernet.cut_points[0].tensors[0].shape
    return np.random.default_rng(0).random((count, *shape), dtype=np.float32)


def resized(model):
    return [line.event for line in read_log(model.log.path) if isinstance(line.event, Resized)]


def used_bytes(model):
    with model._in_use.cap.changed:
        return model._in_use.cap.used_bytes


def wait_for(condition):
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_the_cap_can_be_changed_and_the_answers_stay(model):
    tensor, plan = inputs_of(model), plan_of(model)
    expected = model.infer(tensor).output
    page_bytes = least_memory_cap_bytes(model.bundle, Plan(plan.subnet))
    before = len(resized(model))
    for cap_bytes in (page_bytes, 2 * page_bytes, None, page_bytes):
        model.memory_cap_bytes = cap_bytes
        assert model.memory_cap_bytes == cap_bytes
        np.testing.assert_allclose(model.infer(tensor).output, expected, atol=1e-4)
        if cap_bytes is not None:
            assert used_bytes(model) <= cap_bytes
    assert [event.cap_bytes for event in resized(model)[before:]] == [page_bytes, 2 * page_bytes, None, page_bytes]


def test_below_the_largest_block_an_exit_answers_and_the_whole_plan_comes_back(model):
    tensor, plan = inputs_of(model), plan_of(model)
    model.memory_cap_bytes = least_memory_cap_bytes(model.bundle, Plan(plan.subnet)) - 1
    assert model.infer(tensor).source == ("exit x1",)
    assert model.infer(tensor, deadline_ms=60_000).source == ("exit x1",)
    assert resized(model)[-1].ends_at == "x1"
    model.memory_cap_bytes = 200_000_000
    assert model.plan == plan
    assert model.infer(tensor).source == ("subnet",)


def test_a_cap_that_is_too_small_is_refused_and_nothing_changes(model):
    plan, least = plan_of(model), least_plan_bytes(model.bundle, plan_of(model))
    with pytest.raises(BudgetError, match="too small"):
        model.memory_cap_bytes = least - 1
    with pytest.raises(UsageError, match="above 0"):
        model.memory_cap_bytes = 0
    assert (model.memory_cap_bytes, model.plan) == (200_000_000, plan)
    assert model.infer(inputs_of(model)).source == ("subnet",)


def test_a_closed_model_has_no_cap_to_change(elastic_heavy, state):
    model = AdaptiveModel.open(elastic_heavy.folder, state_folder=state)
    model.close()
    with pytest.raises(ClosedError):
        model.memory_cap_bytes = 100_000_000
    with pytest.raises(ClosedError):
        model.live.start("memory", pressure=FakePressure(0))


@pytest.mark.parametrize("whole", [False, True], ids=["paged before", "without a cap before"])
def test_no_call_is_lost_while_the_cap_changes(elastic_heavy, state, whole):
    with AdaptiveModel.open(elastic_heavy.folder, state_folder=state, memory_cap_mb=None if whole else 200) as model:
        plan = plan_of(model)
        model.use(plan)
        tensor = inputs_of(model)
        expected = model.infer(tensor).output
        shortened = least_plan_bytes(model.bundle, plan)
        paged = least_memory_cap_bytes(model.bundle, Plan(plan.subnet))
        done, counts = threading.Event(), []

        def call(kind):
            count = 0
            while not done.is_set():
                if kind == "anytime":
                    with model.stream(tensor) as running:
                        answer = running.wait(PATIENCE_S)
                else:
                    answer = model.infer(tensor, deadline_ms=60_000.0 if kind == "deadline" else None)
                if answer.source == ("subnet",):
                    np.testing.assert_allclose(answer.output, expected, atol=1e-4)
                else:
                    assert answer.source[0].startswith("exit ")
                count += 1
            counts.append(count)

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(call, kind) for kind in ("ordinary", "ordinary", "deadline", "anytime")]
            try:
                for cap_bytes in (paged, shortened, None if whole else 10**9, paged, 3 * paged, shortened) * 2:
                    model.memory_cap_bytes = cap_bytes
                    time.sleep(0.05)
                    if cap_bytes is not None:
                        wait_for(lambda cap_bytes=cap_bytes: used_bytes(model) <= cap_bytes)
            finally:
                done.set()
            for one in calls:
                one.result(PATIENCE_S)
        assert min(counts) > 0
        wait_for(lambda: used_bytes(model) <= shortened)


def test_the_cap_follows_the_system_and_comes_back(model):
    plan, most = plan_of(model), whole_plan_bytes(model.bundle, plan_of(model))
    settings = ElasticSettings(reserve_bytes=0, grow_after_s=0.1, interval_s=0.01)
    pressure = FakePressure(10 * most)
    model.live.start("memory", pressure=pressure, elastic=settings)
    time.sleep(0.05)
    assert model.memory_cap_bytes == 200_000_000
    before = len(resized(model))
    pressure.available_bytes = 0
    wait_for(lambda: len(resized(model)) > before)
    assert resized(model)[-1].why == "pressure"
    assert model.memory_cap_bytes < most
    assert model.infer(inputs_of(model)).source[0] in ("subnet", "exit x1")
    pressure.available_bytes = 100 * most
    wait_for(lambda: model.memory_cap_bytes == 200_000_000)
    assert model.plan == plan
    model.live.stop("memory")
    model.live.stop("memory")
    pressure.available_bytes = 0
    time.sleep(0.05)
    assert model.memory_cap_bytes == 200_000_000


def test_a_source_that_fails_leaves_the_cap_and_is_asked_again(model):
    settings = ElasticSettings(reserve_bytes=0, interval_s=0.01)
    pressure = FakePressure(10**9)
    pressure.failure = MeasurementError("memory.current says 'x'")
    with pytest.raises(MeasurementError):
        model.live.start("memory", pressure=pressure, elastic=settings)
    pressure.failure = None
    model.live.start("memory", pressure=pressure, elastic=settings)
    pressure.failure, pressure.available_bytes = MeasurementError("gone"), 0
    time.sleep(0.05)
    assert model.memory_cap_bytes == 200_000_000
    pressure.failure = None
    wait_for(lambda: model.memory_cap_bytes < 200_000_000)


def test_under_pressure_a_running_call_answers_with_the_last_exit_it_reached(model):
    model.use(Plan(plan_of(model).subnet, (ExitChoice("x1", 1.0), ExitChoice("x3", 1.0))))
    loaded = model._in_use.running().loaded
    reached = threading.Event()
    segment, stretch = loaded._segments[1]

    class Slow:
        def run_until(self, inputs, stop):
            reached.set()
            ended = threading.Event()
            with stop.ending_by(ended.set):
                assert ended.wait(PATIENCE_S)
            return stretch.run_until(inputs, stop)

    loaded._segments[1] = (segment, Slow())
    pressure = FakePressure(10**9)
    model.live.start("memory", pressure=pressure, elastic=ElasticSettings(reserve_bytes=0, interval_s=0.01))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(model.infer, inputs_of(model))
        assert reached.wait(PATIENCE_S)
        pressure.available_bytes = 0
        assert call.result(PATIENCE_S).source == ("exit x1",)


def test_a_plan_taken_under_a_low_cap_is_the_one_that_comes_back(model):
    other = Plan(plan_of(model).subnet, plan_of(model).exits[:1])
    model.memory_cap_bytes = least_memory_cap_bytes(model.bundle, Plan(other.subnet))
    model.use(other)
    model.memory_cap_bytes = 200_000_000
    assert model.plan == other


def test_a_plan_that_was_loaded_for_a_higher_cap_is_loaded_again(model):
    """As if a search that began under the old cap had taken its plan after the cap sank."""
    tensor, plan = inputs_of(model), plan_of(model)
    expected = model.infer(tensor).output
    loaded = model._in_use.load(plan)
    page_bytes = 2 * least_memory_cap_bytes(model.bundle, Plan(plan.subnet))
    model.memory_cap_bytes = page_bytes
    loaded.release()
    model._in_use.exchange(Active(plan, loaded))
    np.testing.assert_allclose(model.infer(tensor).output, expected, atol=1e-4)
    assert model._in_use.running().loaded is not loaded
    model._in_use.exchange(Active(plan, loaded))
    with model.stream(tensor) as running:
        assert running.wait(PATIENCE_S).source == ("subnet",)
    model._in_use.exchange(Active(plan, loaded))
    assert model.infer(tensor, deadline_ms=60_000).source == ("subnet",)
