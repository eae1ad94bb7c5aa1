"""Following the network: how long until the plan is the one for a link that became slow, failed, or came back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.data.datasets import ImageDataset
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import Power
from device_sdk.supernet.goal import Goal
from pathweave.throttled_proxy import ThrottledProxy, slow_uplink

FAST_MBPS, SLOW_MBPS = 50.0, 0.05
LATENCY_MS = 150.0  # kept over the fast link alone
EVERY_S = 0.05  # a sample
GIVEN_UP_S = 30.0
# a radio that costs nothing against computing: the plan sends as soon as the link allows it
POWER = Power(active_w=1000.0, radio_w=0.001, waiting_w=0.001)


def follow_network(
    bundle: Path, state: Path, url: str, model_name: str, samples: ImageDataset, *, rounds: int
) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Seconds until the plan has left a link that became slow, and until it has returned to it, with the plans."""
    goal = Goal(optimise="energy_mj", latency_ms=LATENCY_MS)
    with slow_uplink(url, mbps=FAST_MBPS) as (address, proxy), AdaptiveModel.open(bundle, state_folder=state) as model:
        model.remote.connect(RemoteModel(server=address, model=model_name, privacy="inputs", timeout_s=5.0))
        first = model.adapt(samples.images, goal, {"ask"}, samples.labels, power=POWER).plan.kind
        model.live.start("network")
        with _in_use(model, samples.images):
            rows = [
                {"what": what, "seconds": seconds, "plan": model.plan.kind}
                for what, seconds in _changes(model, proxy, rounds)
            ]
        rows.insert(0, {"what": "planned", "seconds": 0.0, "plan": first})
    follow_s = max(float(str(row["seconds"])) for row in rows if row["what"] == "slow")
    return_s = max(float(str(row["seconds"])) for row in rows if row["what"] == "fast again")
    return {"follow_s_max": follow_s, "return_s_max": return_s}, rows


def _changes(model: AdaptiveModel, proxy: ThrottledProxy, rounds: int) -> Iterator[tuple[str, float]]:
    for _ in range(rounds):
        proxy.limit(SLOW_MBPS)
        yield "slow", _seconds_until(lambda: not _sends(model))
        time.sleep(2.0)
        proxy.limit(FAST_MBPS)
        yield "fast again", _seconds_until(lambda: _sends(model))
        time.sleep(2.0)


def _sends(model: AdaptiveModel) -> bool:
    return model.plan.split is not None or "ask" in model.plan.kind


def _seconds_until(holds: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > GIVEN_UP_S:
            return float("inf")
        time.sleep(0.02)
    return time.monotonic() - began


@contextmanager
def _in_use(model: AdaptiveModel, images: npt.NDArray[np.uint8]) -> Iterator[None]:
    """A thread that asks for an answer every 50 ms, as an application does."""
    over = threading.Event()

    def work() -> None:
        number = 0
        while not over.wait(EVERY_S):
            model(images[number % len(images)])
            number += 1

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
