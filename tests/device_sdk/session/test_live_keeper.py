"""Live update as ``AdaptiveModel`` offers it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from device_sdk.errors import UsageError
from device_sdk.live.switching import LiveSettings
from device_sdk.logs.adaptation_log import OutOfReach, Switched, Watching, read_log
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Edge, Plan, Subnet

SMALL = Goal(memory_mb=4.5)
FILLED, KEEPING = AdaptationSettings(fill_pool=True), AdaptationSettings(keep_samples=True)


@pytest.fixture
def model(tiny_bundle, slow_state):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as opened:
        yield opened


def bare_answer(bundle, runtime, subnet, tensor):
    """What a subnet answers by itself."""
    return runtime.load(bundle.stretch(subnet.edges)).run([tensor])[-1]


def events(model, kind):
    return [line.event for line in read_log(model.log.path) if isinstance(line.event, kind)]


def call_until(model, tensor, happened):
    """Call again and again; every answer is one."""
    deadline = time.monotonic() + 60
    while not happened():
        assert model.infer(tensor).output.shape == (1, 3)
        assert time.monotonic() < deadline, [line.event for line in read_log(model.log.path)]


SLOW_BUDGET = Goal(latency_ms=60.0)  # far more than anything takes
FASTEST = Plan(Subnet((Edge("o0"), Edge("m1-4"), Edge("o4"))))
EAGER = LiveSettings(up_cooldown_s=0.0, up_window=5)


def test_a_live_model_takes_a_better_subnet_when_there_is_room(model, tiny_bundle, bundle):
    model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels, settings=FILLED)
    model.live.start("latency")
    assert model.live.running == {"latency"}
    assert events(model, Watching)[0].candidates > 1
    model.use(FASTEST)
    model.live.start("latency", settings=EAGER)
    tensor = model.prepare(tiny_bundle.images[0])
    call_until(model, tensor, lambda: model.plan != FASTEST)
    call_until(model, tensor, lambda: events(model, Switched))
    switched = events(model, Switched)[0]
    assert (switched.why, switched.old_subnet) == ("faster", str(FASTEST.subnet))


def test_the_pool_and_the_plan_of_the_adaptation_outlast_the_process(model, tiny_bundle, slow_state):
    found = model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels, settings=FILLED)
    model.live.start("latency", goal=Goal(latency_ms=1e-6), settings=EAGER)
    call_until(model, model.prepare(tiny_bundle.images[0]), lambda: model.plan != found.plan)
    model.close()
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as again:
        assert again.plan == found.plan
        assert not again.live.running
        again.use(FASTEST)
        again.live.start("latency", settings=EAGER)
        call_until(again, again.prepare(tiny_bundle.images[0]), lambda: again.plan != FASTEST)


def test_a_budget_that_cannot_be_kept_runs_the_fastest_and_is_logged(model, tiny_bundle):
    model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels, settings=FILLED)
    model.live.start("latency", goal=Goal(latency_ms=1e-6), settings=EAGER)
    tensor = model.prepare(tiny_bundle.images[0])
    call_until(model, tensor, lambda: events(model, OutOfReach))
    for _ in range(50):
        model.infer(tensor)
    assert len(events(model, OutOfReach)) == 1


def test_private_samples_are_searched_again_if_they_may_be_kept(model, tiny_bundle):
    model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels, settings=KEEPING)
    model.live.start("latency", goal=Goal(latency_ms=1e-6), settings=EAGER)
    tensor = model.prepare(tiny_bundle.images[0])
    call_until(model, tensor, lambda: events(model, OutOfReach))
    assert events(model, OutOfReach)[0].searching


def test_what_a_user_chooses_ends_the_watch_and_stays(model, tiny_bundle, bundle):
    model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels, settings=FILLED)
    model.live.start("latency")
    model.use(Plan(bundle.supernet.original))
    assert "latency" not in model.live.running
    tensor = model.prepare(tiny_bundle.images[0])
    for _ in range(100):
        model.infer(tensor)
    assert model.plan == Plan(bundle.supernet.original)


def test_a_plan_that_got_exits_is_followed_on(model, tiny_bundle):
    model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels, settings=FILLED)
    model.live.start("latency")
    model.adapt(tiny_bundle.images, Goal(optimise="latency_ms", max_drop=0.005), {"exits"}, tiny_bundle.labels)
    assert "latency" in model.live.running


def test_watching_needs_a_pool_and_a_latency_budget(model, tiny_bundle, bundle):
    with pytest.raises(UsageError, match="no plan pool"):
        model.live.start("latency")
    with pytest.raises(UsageError, match="latency budget"):
        model.adapt(tiny_bundle.images, SMALL, labels=tiny_bundle.labels, settings=FILLED)
    model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels)
    with pytest.raises(UsageError, match="latency budget"):
        model.live.start("latency", goal=SMALL)
    model.use(Plan(Subnet((Edge("o0"), Edge("o1"), Edge("s2"), Edge("o3"), Edge("o4")))))
    with pytest.raises(UsageError, match="not in the plan pool"):
        model.live.start("latency")
    assert "latency" not in model.live.running


@pytest.mark.parametrize("damage", [b"", b"{", b'{"budget":{"latency_ms":0},"chosen":{"edges":[]},"candidates":[]}'])
def test_a_damaged_pool_counts_as_none(model, tiny_bundle, damage):
    model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels)
    [path] = model.log.path.parent.glob("pool-*.json")
    path.write_bytes(damage)
    with pytest.raises(UsageError, match="no plan pool"):
        model.live.start("latency")


def test_no_answer_is_lost_or_wrong_while_live_update_switches(model, tiny_bundle, bundle, runtime):
    model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels, settings=FILLED)
    model.use(FASTEST)
    tensor = model.prepare(tiny_bundle.images[:1])
    answers, errors, ended = set(), [], threading.Event()

    def call():
        try:
            while not ended.is_set():
                answer = model.infer(tensor)
                answers.add((answer.plan, answer.output.tobytes()))
        except Exception as error:
            errors.append(error)

    def watch_until(budget, happened):
        model.live.start("latency", goal=budget, settings=EAGER)
        deadline = time.monotonic() + 60
        while not happened() and time.monotonic() < deadline:
            time.sleep(0.002)
        assert happened()

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(3):
            watch_until(SLOW_BUDGET, lambda: model.plan != FASTEST)
            watch_until(Goal(latency_ms=1e-6), lambda: model.plan == FASTEST)
    finally:
        ended.set()
        for caller in callers:
            caller.join(timeout=60)
    assert errors == []
    assert len({plan for plan, _ in answers}) > 1
    assert answers == {
        (plan, bare_answer(bundle, runtime, plan.subnet, tensor).tobytes()) for plan in {plan for plan, _ in answers}
    }


def test_closing_ends_all_threads(tiny_bundle, slow_state):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        model.adapt(tiny_bundle.images, SLOW_BUDGET, labels=tiny_bundle.labels, settings=KEEPING)
        model.live.start("latency", "classes")
        asyncio.run(model.acall(model.prepare(tiny_bundle.images[0])))
    deadline = time.monotonic() + 30
    while any(thread.name.startswith("pathweave") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
