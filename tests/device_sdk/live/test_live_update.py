from __future__ import annotations

import threading
import time

import msgspec
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import InfeasibleBudgetError, StorageError
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.execution.workspace import Workspace
from device_sdk.live.live_update import LiveUpdate
from device_sdk.live.plan_pool import PlanPool
from device_sdk.live.switching import LiveSettings
from device_sdk.logs.adaptation_log import (
    AdaptationLog,
    OutOfReach,
    Searched,
    Switched,
    SwitchFailed,
    Watching,
    read_log,
)
from device_sdk.profiling.speed_reading import SpeedReading
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget, Cost
from device_sdk.supernet.plan import ANY_SERVER, Ask, Edge, ExitChoice, MaxConfidence, Plan, Subnet


def asking(threshold):
    return Ask(MaxConfidence(threshold), ANY_SERVER)


DEADLINE_S = 60.0
EAGER = LiveSettings(cooldown_s=0.0, up_cooldown_s=0.0)


def subnet(*blocks: str) -> Subnet:
    return Subnet(tuple(map(Edge, blocks)))


FULL = subnet("o0", "o1", "o2", "o3", "o4")
MIDDLE, FAST = subnet("o0", "o1", "m2-4", "o4"), subnet("o0", "m1-4", "o4")
FASTER = subnet("o0", "m1-3", "o3", "o4")  # is not; what a search in the background brings


def candidate(of: Subnet, latency_ms: float, accuracy: float) -> Candidate:
    return Candidate(Plan(of), Cost(latency_ms=latency_ms, peak_bytes=1_000_000), accuracy)


POOL = PlanPool(
    Budget(latency_ms=10.0),
    FULL,
    (candidate(FAST, 2.0, 0.5), candidate(MIDDLE, 4.0, 0.8), candidate(FULL, 9.0, 1.0)),
)


class Scene:
    """A plan in use with its log, and what it takes to watch it."""

    def __init__(self, bundle, runtime, folder):
        self.in_use = PlanInUse(Workspace(bundle, runtime))
        self.in_use.begin(Plan(FULL))
        self.log = AdaptationLog(folder / "log", bundle="b", runtime="r")
        self.live = None

    def watch(self, pool=POOL, settings=EAGER, **more):
        self.live = LiveUpdate(self.in_use, self.log, pool, settings, **more)
        self.live.start()
        return self.live

    def calls(self, service_ms, count=5):
        """So many calls took so long with the plan in use."""
        active = self.in_use.running()
        for _ in range(count):
            active.times.record(service_ms)

    def subnet(self):
        return self.in_use.running().plan.subnet

    def wait_for(self, happened):
        deadline = time.monotonic() + DEADLINE_S
        while not happened():
            assert time.monotonic() < deadline, [line.event for line in read_log(self.log.path)]
            time.sleep(0.005)

    def events(self, kind):
        return [line.event for line in read_log(self.log.path) if isinstance(line.event, kind)]


@pytest.fixture
def scene(bundle, runtime, tmp_path):
    made = Scene(bundle, runtime, tmp_path)
    yield made
    if made.live is not None:
        made.live.stop()


def test_calls_over_the_budget_bring_the_best_subnet_that_fits(scene):
    scene.watch()
    scene.calls(18.0)
    scene.wait_for(lambda: scene.subnet() == MIDDLE)
    scene.wait_for(lambda: scene.events(Switched))
    [switched] = scene.events(Switched)
    assert (switched.why, switched.old_subnet, switched.subnet) == ("slower", str(FULL), str(MIDDLE))
    assert switched.drift_ratio == pytest.approx(2.0)
    assert switched.service_ms == 18.0
    assert scene.events(Watching) == [Watching(10.0, None, str(FULL), 3, 2.0, 9.0)]


def test_it_goes_down_step_by_step_and_back_up(scene):
    scene.watch()
    for service_ms, count, expected in [(18.0, 5, MIDDLE), (20.0, 5, FAST), (2.0, 20, FULL)]:
        scene.calls(service_ms, count)
        scene.wait_for(lambda expected=expected: scene.subnet() == expected)
    scene.wait_for(lambda: len(scene.events(Switched)) == 3)
    assert [one.why for one in scene.events(Switched)] == ["slower", "slower", "faster"]


def test_what_probably_comes_next_is_ready_ahead(scene):
    live = scene.watch()
    scene.wait_for(lambda: live.warm_subnets == {MIDDLE, FAST})
    scene.calls(18.0)
    scene.wait_for(lambda: scene.events(Switched))
    assert scene.events(Switched)[0].ahead
    scene.wait_for(lambda: live.warm_subnets == {FULL, FAST})  # where it came from is kept


def test_nothing_is_prepared_ahead_beyond_the_cap(scene):
    live = scene.watch(settings=LiveSettings(cooldown_s=0.0, up_cooldown_s=0.0, warm_bytes=1_500_000))
    scene.wait_for(lambda: len(live.warm_subnets) == 1)
    scene.calls(18.0)
    scene.wait_for(lambda: scene.subnet() == MIDDLE)
    assert len(live.warm_subnets) <= 1


def test_calls_within_bounds_wake_nobody_and_change_nothing(scene):
    live = scene.watch()
    scene.wait_for(lambda: live.warm_subnets == {MIDDLE, FAST})
    active = scene.in_use.running()
    scene.calls(9.5, 64)
    assert scene.in_use.running() is active
    assert scene.events(Switched) == []


def test_times_of_the_old_plan_do_not_count_for_the_new_one(scene):
    scene.watch()
    old = scene.in_use.running()
    scene.calls(18.0)
    scene.wait_for(lambda: scene.subnet() == MIDDLE)
    for _ in range(64):
        old.times.record(90.0)  # calls that began before the switch
    scene.calls(8.0, 5)
    scene.wait_for(lambda: scene.in_use.running().times.last() == [8.0] * 5)
    time.sleep(0.1)
    assert scene.subnet() == MIDDLE


def test_a_subnet_that_does_not_load_is_reported_once_and_the_next_best_taken(own_bundle, runtime, tmp_path):
    scene = Scene(Bundle.open(own_bundle.folder), runtime, tmp_path)
    own_bundle.blob("m2-4").unlink()
    try:
        scene.watch()
        scene.calls(18.0)
        scene.wait_for(lambda: scene.subnet() == FAST)
        scene.calls(2.0, 64)
        scene.wait_for(lambda: scene.subnet() == FULL)
    finally:
        scene.live.stop()
    [failed] = scene.events(SwitchFailed)
    assert failed.subnet == str(MIDDLE)
    assert "cannot be read" in failed.failure


def test_when_no_blob_can_be_read_the_old_plan_keeps_serving(own_bundle, runtime, tmp_path):
    scene = Scene(Bundle.open(own_bundle.folder), runtime, tmp_path)
    for block in ("m2-4", "m1-4"):
        own_bundle.blob(block).unlink()
    tensor = scene.in_use.running().loaded
    try:
        scene.watch()
        scene.calls(18.0, 64)
        scene.wait_for(lambda: len(scene.events(SwitchFailed)) == 2)
        assert scene.subnet() == FULL
        scene.in_use.run_once(tensor)
    finally:
        scene.live.stop()


def test_a_budget_out_of_reach_runs_the_fastest_and_is_noted_once(scene):
    scene.watch()
    scene.calls(500.0)
    scene.wait_for(lambda: scene.subnet() == FAST)
    for _ in range(5):
        scene.calls(100.0)
        time.sleep(0.05)
    [noted] = scene.events(OutOfReach)
    assert (noted.budget_latency_ms, noted.searching) == (10.0, False)
    assert noted.drift_ratio == pytest.approx(500 / 9)


def test_a_search_in_the_background_widens_the_pool_while_the_old_subnet_serves(scene):
    may_end, remembered, asked = threading.Event(), [], []

    def search(budget, cancelled):
        asked.append(budget)
        assert may_end.wait(DEADLINE_S)
        return [candidate(FASTER, 0.1, 0.4)]

    scene.watch(search=search, remember=remembered.append)
    scene.calls(90.0)  # ten times slower: 1 ms is needed
    scene.wait_for(lambda: scene.subnet() == FAST)
    scene.calls(20.0)
    assert scene.events(OutOfReach)[0].searching
    scene.wait_for(lambda: asked)
    assert asked[0].latency_ms == pytest.approx(0.98)
    may_end.set()
    scene.wait_for(lambda: scene.events(Searched))
    scene.calls(20.0)
    scene.wait_for(lambda: scene.subnet() == FASTER)
    assert remembered[0].find(FASTER) is not None
    [searched] = scene.events(Searched)
    assert (searched.candidates, searched.failure) == (1, None)


def test_a_search_that_finds_nothing_is_not_repeated(scene):
    begun = []

    def search(budget, cancelled):
        begun.append(budget)
        raise InfeasibleBudgetError("nothing fits", nearest=(), nearest_latency_ms=1.0, nearest_peak_bytes=1)

    settings = LiveSettings(cooldown_s=0.0, up_cooldown_s=0.0, search_cooldown_s=0.0)
    scene.watch(search=search, settings=settings)
    scene.calls(90.0)
    scene.wait_for(lambda: scene.events(Searched))
    for _ in range(4):
        scene.calls(30.0)
        time.sleep(0.05)
    assert len(begun) == 1
    assert scene.events(Searched)[0].failure == "nothing fits"


def test_a_full_disk_does_not_stop_what_a_search_found(scene, caplog):
    def remember(pool):
        raise StorageError("the disk is full")

    scene.watch(search=lambda budget, cancelled: [candidate(FASTER, 0.1, 0.4)], remember=remember)
    scene.calls(90.0)
    scene.wait_for(lambda: scene.events(Searched))
    scene.wait_for(lambda: (scene.calls(20.0), scene.subnet() == FASTER)[1])
    assert "the disk is full" in caplog.text


def test_stopping_ends_a_search_and_its_threads(scene):
    cancelled_after = []

    def search(budget, cancelled):
        deadline = time.monotonic() + DEADLINE_S
        while not cancelled() and time.monotonic() < deadline:
            time.sleep(0.001)
        cancelled_after.append(cancelled())
        return []

    live = scene.watch(search=search)
    scene.calls(90.0)
    scene.wait_for(lambda: scene.events(OutOfReach))
    live.stop()
    live.stop()
    assert cancelled_after == [True]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pathweave-")]
    assert scene.in_use.running().times is None
    assert scene.events(Searched) == []


def test_closing_ends_the_watch(scene):
    live = scene.watch()
    scene.calls(18.0, 4)
    active = scene.in_use.running()
    scene.in_use.close()
    active.times.record(18.0)
    live.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "pathweave-live"]


def test_a_plan_that_somebody_else_chose_meanwhile_stays(scene):
    scene.watch()
    other = Active(Plan(FAST), scene.in_use.load(Plan(FAST)))
    scene.calls(18.0, 4)
    watched = scene.in_use.running()
    scene.in_use.exchange(other)
    watched.times.record(18.0)
    time.sleep(0.1)
    assert scene.in_use.running() is other


def test_exits_belong_to_one_subnet_and_come_back_with_it(scene, bundle):
    calibrated = Plan(FULL, exits=(ExitChoice("x1-pooled", 0.9),), hard=asking(0.5))
    scene.in_use.exchange(Active(calibrated, scene.in_use.load(calibrated)))
    scene.watch()
    scene.calls(18.0)
    scene.wait_for(lambda: scene.subnet() == MIDDLE)
    assert scene.in_use.running().plan == Plan(MIDDLE)  # a threshold holds for one subnet alone
    scene.calls(4.0, 20)
    scene.wait_for(lambda: scene.subnet() == FULL)
    assert scene.in_use.running().plan == calibrated


def test_a_clock_that_jumps_backwards_does_not_stop_it(scene):
    class Jumping:
        now_s = 1e9

        def __call__(self):
            self.now_s -= 1e6
            return self.now_s

    scene.watch(settings=LiveSettings(), clock=Jumping())
    scene.calls(18.0)
    scene.wait_for(lambda: scene.subnet() == MIDDLE)
    scene.calls(20.0)
    scene.wait_for(lambda: scene.subnet() == FAST)


def test_subnets_of_the_pool_run_with_the_plans_that_were_calibrated_for_them(scene):
    scene.watch()
    pool = scene.live.take_plans({MIDDLE: Plan(MIDDLE, hard=asking(0.4))})
    assert pool.find(MIDDLE).plan.hard_threshold == 0.4
    scene.calls(18.0)
    scene.wait_for(lambda: scene.subnet() == MIDDLE)
    assert scene.in_use.running().plan == Plan(MIDDLE, hard=asking(0.4))


class Told:
    """A system whose words on its speed are told."""

    def __init__(self, before, now):
        self.before, self.now, self.asked = before, now, 0

    def read(self):
        self.asked += 1
        return self.before if self.asked == 1 else self.now


CALM, HOT = SpeedReading(), SpeedReading(held_back=("cpufreq",))


class Busy(Told):
    """More and more of the processor's time is spent waiting for it."""

    def __init__(self):
        super().__init__(CALM, CALM)

    def read(self):
        self.asked += 1
        return SpeedReading(run_ns=self.asked * 1000, waited_ns=self.asked * 1000)


@pytest.mark.parametrize(
    ("signals", "cause"), [(Told(CALM, CALM), "unknown"), (Told(CALM, HOT), "throttled"), (Busy(), "load")]
)
def test_a_switch_down_says_why_the_device_is_slower(scene, signals, cause):
    scene.watch(signals=signals)
    scene.calls(18.0)
    scene.wait_for(lambda: scene.events(Switched))
    assert scene.events(Switched)[0].cause == cause


def test_after_throttling_it_stays_down_until_the_wait_is_over(scene):
    now_s, looks = [100.0], [0]

    def clock():
        looks[0] += 1
        return now_s[0]

    live = scene.watch(signals=Told(CALM, HOT), clock=clock)
    scene.calls(18.0)
    scene.wait_for(lambda: scene.events(Switched) and live.warm_subnets == {FULL, FAST})
    looked = looks[0]
    scene.calls(2.0, 64)
    scene.wait_for(lambda: looks[0] > looked + 1)
    scene.in_use.running().times.record(2.0)
    scene.wait_for(lambda: looks[0] > looked + 3)
    assert scene.subnet() == MIDDLE
    now_s[0] += 31.0
    scene.calls(2.0, 64)
    scene.wait_for(lambda: scene.subnet() == FULL)


def test_a_slow_home_brings_a_subnet_that_does_without_it(bundle, runtime, tmp_path):
    def npu(one):
        return Subnet(tuple(msgspec.structs.replace(edge, home="qnn-1t") for edge in one.edges))

    pool = PlanPool(
        Budget(latency_ms=10.0),
        FULL,
        (candidate(FAST, 2.0, 0.5), candidate(MIDDLE, 8.0, 0.8), candidate(npu(FULL), 9.0, 1.0)),
    )
    scene = Scene(bundle, runtime, tmp_path)
    full = scene.in_use.running()
    assert scene.in_use.exchange(Active(Plan(npu(FULL)), full.loaded), expected=full)  # told to be there
    try:
        scene.watch(pool, signals=Told(CALM, CALM))
        scene.calls(36.0)
        scene.wait_for(lambda: scene.subnet() == MIDDLE)  # 32 ms, were the whole device as slow
        scene.wait_for(lambda: scene.events(Switched))
    finally:
        scene.live.stop()
    [switched] = scene.events(Switched)
    assert (switched.cause, switched.expected_ms) == ("home", 8.0)


def test_a_switch_up_has_no_cause(scene):
    scene.watch(signals=Busy())
    scene.calls(18.0)
    scene.wait_for(lambda: scene.events(Switched))
    scene.calls(2.0, 20)
    scene.wait_for(lambda: scene.subnet() == FULL)
    scene.wait_for(lambda: len(scene.events(Switched)) == 2)
    assert [one.cause for one in scene.events(Switched)] == ["load", None]
