"""A plan that follows the network: a real server behind a link that a test makes slow and quick again."""

from __future__ import annotations

import time

import pytest

from device_sdk.data.datasets import load_dataset
from device_sdk.errors import UsageError
from device_sdk.logs.adaptation_log import PlanChosen, read_log
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.supernet.cost import Power
from device_sdk.supernet.requirement import Requirement
from pathweave.server_process import running_server
from pathweave.throttled_proxy import slow_uplink

FAST_MBPS, SLOW_MBPS = 50.0, 0.02
# computing costs so much more than sending that the plan sends as soon as the link keeps the latency
POWER = Power(active_w=1000.0, radio_w=0.001, waiting_w=0.001)
REQUIREMENT = Requirement(optimise="energy_mj", latency_ms=150.0, coverage=1.0)


def use_until(model, images, happened, *, limit_s: float) -> float:
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < limit_s, model.plan
        model(images[0])
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.slow
def test_the_plan_leaves_a_slow_link_within_seconds_and_returns(demo_folder, tmp_path):
    data = load_dataset("digits#search")
    images, labels = data.images[:60], data.labels[:60]
    bundle = demo_folder / "bundles" / "digits"
    with (
        running_server(demo_folder / "bundles", data=tmp_path / "server") as url,
        slow_uplink(url, mbps=FAST_MBPS) as (address, proxy),
        AdaptiveModel.open(bundle, state_folder=tmp_path / "state") as model,
    ):
        model.connect(RemoteModel(server=address, model="digits:images", privacy="inputs", timeout_s=5.0))
        planned = model.plan_for(images, labels, REQUIREMENT, power=POWER, follow_network=True)
        assert planned.choice.plan.kind == "remote"
        assert set(model(images[0]).source) == {SERVER}
        proxy.limit(SLOW_MBPS)
        use_until(model, images, lambda: model.plan.split is None, limit_s=15)
        proxy.limit(FAST_MBPS)
        use_until(model, images, lambda: model.plan.split is not None, limit_s=15)
        model.use(planned.choice.plan)  # ends it
        proxy.limit(SLOW_MBPS)
        time.sleep(3)
        assert model.plan == planned.choice.plan
        events = [line.event for line in read_log(model.log_path)]
    notes = [event.notes for event in events if isinstance(event, PlanChosen)]
    assert len(notes) >= 3
    assert notes[1][0].startswith("the network changed: ")


def test_without_a_server_there_is_no_network_to_follow(demo_folder, tmp_path):
    data = load_dataset("digits#search")
    bundle = demo_folder / "bundles" / "digits"
    with AdaptiveModel.open(bundle, state_folder=tmp_path / "state") as model:
        before = model.plan
        with pytest.raises(UsageError, match="no network to follow"):
            model.plan_for(
                data.images[:40], data.labels[:40], Requirement(latency_ms=100.0), power=POWER, follow_network=True
            )
        assert model.plan == before
