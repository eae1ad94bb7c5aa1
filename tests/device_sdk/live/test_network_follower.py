from __future__ import annotations

import threading

import pytest

from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.execution.workspace import Workspace
from device_sdk.live.network_follower import DriftSettings, NetworkDrift, NetworkFollower
from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Abstain, MaxConfidence, Plan, RemoteRef, Split

PLANNED, SLOW = Uplink(10.0, 20.0), Uplink(0.1, 20.0)
SIZE = 3_000
EAGER = DriftSettings(factor=1.5, patience_s=0.0, cooldown_s=0.0)


class Scene:
    """A plan in use, a link whose speed a test sets, and a planner of two plans: send over a quick link, else not."""

    def __init__(self, bundle, runtime) -> None:
        self.in_use = PlanInUse(Workspace(bundle, runtime))
        subnet = bundle.supernet.original
        self.remote, self.local = Plan(subnet, split=Split(0, (), (), RemoteRef("big"))), Plan(subnet)
        self.in_use.begin(self.remote)
        self.now_s = 0.0
        self.link = LinkEstimate(PLANNED, clock=lambda: self.now_s)
        self.speed: Uplink | None = PLANNED
        self.told: list[Uplink | None] = []
        self.replan = lambda uplink: self.local if uplink is None or uplink.mbps < 1 else self.remote

    def follower(self) -> NetworkFollower:
        return NetworkFollower(
            self.in_use,
            self.link,
            NetworkDrift(PLANNED, (1, SIZE), EAGER),
            probe=self.probe,
            replan=lambda uplink: self.replan(uplink),
            exchanged=self.told.append,
            clock=lambda: self.now_s,
        )

    def probe(self) -> None:
        for size in (1, SIZE):
            if self.speed is None:
                self.link.failed()
            else:
                self.link.record(size, self.speed.transfer_ms(size) / 1e3)

    def look(self, follower: NetworkFollower, speed: Uplink | None) -> Plan:
        self.speed = speed
        self.now_s += 10.0
        follower.look()
        return self.in_use.running().plan


@pytest.fixture
def scene(bundle, runtime):
    return Scene(bundle, runtime)


def test_the_plan_leaves_a_slow_link_and_returns(scene):
    follower = scene.follower()
    plans = [scene.look(follower, speed) for speed in (PLANNED, SLOW, SLOW, PLANNED)]
    assert plans == [scene.remote, scene.local, scene.local, scene.remote]
    assert [uplink.mbps < 1 for uplink in scene.told] == [True, False]


def test_a_server_out_of_reach_is_planned_without_until_it_is_back(scene):
    follower = scene.follower()
    assert [scene.look(follower, speed) for speed in (None, None, PLANNED)] == [scene.local, scene.local, scene.remote]
    assert scene.told[0] is None


def test_requests_spare_the_probe(scene):
    follower = scene.follower()
    scene.look(follower, PLANNED)
    scene.speed = None  # a probe would fail
    for _ in range(5):
        scene.link.record(SIZE, PLANNED.transfer_ms(SIZE) / 1e3)
        scene.now_s += 0.1
        follower.look()
    assert scene.link.uplink is not None


def test_the_same_plan_is_not_exchanged(scene):
    scene.replan = lambda uplink: scene.remote
    before = scene.in_use.running()
    assert scene.look(scene.follower(), SLOW) == scene.remote
    assert scene.in_use.running() is before
    assert scene.told == []


def test_a_plan_that_was_taken_in_between_stays(scene):
    other = Plan(scene.local.subnet, hard=Abstain(MaxConfidence(0.5)))

    def replan(uplink):
        scene.in_use.exchange(Active(other, scene.in_use.prepare(other)))
        return scene.local

    scene.replan = replan
    assert scene.look(scene.follower(), SLOW) == other


def test_a_plan_that_does_not_load_leaves_the_one_in_use(scene, caplog):
    unfit = Plan(scene.local.subnet, split=Split(0, (8, 8, 8), (), RemoteRef("big")))
    scene.replan = lambda uplink: unfit
    assert scene.look(scene.follower(), SLOW) == scene.remote
    assert "does not load" in caplog.text


def test_the_thread_ends_and_survives_errors(scene):
    happened = threading.Event()

    def fails(uplink):
        happened.set()
        raise RuntimeError("a bug")

    scene.replan, scene.speed = fails, SLOW
    follower = scene.follower()
    follower.start()
    assert happened.wait(60)
    happened.clear()
    assert happened.wait(60)
    follower.stop()
    follower.stop()
    assert scene.in_use.running().plan == scene.remote
