"""Splits that follow bandwidth and server load, of devices that hold everything and of those that hold a head."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.split_decision import SplitLimits
from device_sdk.policies.split_front import split_front
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.session.heads import plan_head
from pathweave.server_process import ServerProcess
from pathweave.throttled_proxy import ThrottledProxy, slow_uplink
from tests.device_sdk.heavy_bundle import write_heavy_bundle

pytestmark = pytest.mark.alone

FAST_MBPS, SLOW_MBPS = 100.0, 0.5
FACTOR = 200.0  # of the planned device: sending early is worth it on a fast uplink
MOST_S = 5.0  # from the drift to the new plan
SIDES = (64, 64, 32, 16, 16)  # the first cut points are the largest to send
IMAGE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


class Scene:
    """A server behind a link, and the address of a bundle there."""

    def __init__(self, server: ServerProcess, address: str, proxy: ThrottledProxy) -> None:
        self.server, self.proxy = server, proxy
        self.bundle = f"{address}/v1/bundles/heavy"
        self.tails = RemoteModel(server=address, model="heavy:tail", privacy="activations", timeout_s=5.0)


@pytest.fixture
def scene(tmp_path) -> Iterator[Scene]:
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    write_heavy_bundle(tmp_path / "heavy", blocks=4, channels=32, colours=3, exits=[2], sides=SIDES)
    server = ServerProcess(tmp_path / "heavy", data=tmp_path / "data")
    try:
        with slow_uplink(server.url, mbps=FAST_MBPS) as (address, proxy):
            yield Scene(server, address, proxy)
    finally:
        server.stop()


def follow(scene: Scene, model: AdaptiveModel, state) -> None:
    """Follow the network with the splits of a device ``FACTOR`` times slower than this one."""
    decision = plan_head(
        scene.bundle, trust=None, server=scene.tails, device_factor=FACTOR, uplink_mbps=FAST_MBPS, state_folder=state
    )
    model._state.save_front(split_front(model.bundle, decision, SplitLimits()))
    model.connect(scene.tails)
    model.use(decision.plan)
    model.follow_network()


def position(model: AdaptiveModel) -> int | None:
    return None if model.plan.split is None else model.plan.split.position


def seconds_until(model: AdaptiveModel, happened: Callable[[], bool]) -> float:
    """Answers images until it has happened."""
    began = time.monotonic()
    while not happened():
        took_s = time.monotonic() - began
        assert took_s < 3 * MOST_S, (model.plan.split and model.plan.split.position, took_s)
        model(IMAGE)
        time.sleep(0.02)
    return time.monotonic() - began


def test_a_split_becomes_the_device_alone_on_a_slow_link_and_comes_back(scene, tmp_path):
    with AdaptiveModel.open(scene.bundle, trust=None, state_folder=tmp_path / "state") as model:
        follow(scene, model, tmp_path / "state")
        assert position(model) == 1
        assert model(IMAGE).source == (SERVER,)
        scene.proxy.limit(SLOW_MBPS)
        assert seconds_until(model, lambda: position(model) is None) < MOST_S
        scene.proxy.limit(FAST_MBPS)
        assert seconds_until(model, lambda: position(model) == 1) < MOST_S
        assert model(IMAGE).source == (SERVER,)


def test_a_head_moves_between_the_cut_points_that_it_holds(scene, tmp_path):
    state = tmp_path / "state"
    decision = plan_head(
        scene.bundle, trust=None, server=scene.tails, uplink_mbps=FAST_MBPS, fallback="abstain", state_folder=state
    )
    deep = next(cost for cost in decision.costs if cost.position == 3)
    from device_sdk.policies.split_decision import with_split

    plan = with_split(decision_bundle(scene, state), decision.fallbacks.plan, deep, decision.server, decision.fallbacks)
    with AdaptiveModel.open(scene.bundle, trust=None, plan=plan, state_folder=state) as model:
        follow_head(scene, model, state)
        assert position(model) == 1
        scene.proxy.limit(SLOW_MBPS)
        assert seconds_until(model, lambda: position(model) == 3) < MOST_S
        scene.proxy.limit(FAST_MBPS)
        assert seconds_until(model, lambda: position(model) == 1) < MOST_S
        assert model(IMAGE).source == (SERVER,)
        assert model.bundle.last_position == 3
