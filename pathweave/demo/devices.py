"""The simulated devices of the demo: each has its own data and budget, and starts with a public key and a URL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import ImageDataset, dirichlet_shift, draw_like, load_dataset
from device_sdk.delivery.log_upload import upload_log
from device_sdk.logs.adaptation_log import Delivered, read_log
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.runtimes import make_runtime
from device_sdk.search import PrefixTreeEvaluator
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Subnet
from device_sdk.transports import make_transport
from pathweave.throttled_proxy import cut_once

PRIVATE, CALIBRATION, HELD_BACK = "digits#search", "digits#calibration", "digits#report"
PRIVATE_SAMPLES = 240
HELD_BACK_SAMPLES = 100  # every class of the held-back part has enough samples, for any mix
ALPHA = 0.5  # of the Dirichlet distribution of classes
ASKED_SHARE = 0.1  # of the samples, at most
TIMEOUT_S = 2.0  # for the server's answers
CUT_AFTER_BYTES = 1_500_000  # of some nine millions
BACK_TO_BACK = 1e6  # calls per second: the network is so small that the pause before a call would hide its latency


@dataclass(frozen=True)
class Delivery:
    """The bundle's location, its public key, and the folder of the devices' state."""

    server: str
    bundle: str
    public_key: Path
    state: Path

    def open(self, device: str, progress: Progress, *, server: str | None = None) -> AdaptiveModel:
        """Open the bundle as a new device, with the full model as its plan."""
        return AdaptiveModel.open(
            f"{server or self.server}/v1/bundles/{self.bundle}",
            trust=self.public_key,
            state_folder=self.state / device,
            progress=progress,
        )


@dataclass(frozen=True)
class Point:
    """An evaluated subnet. ``accuracy`` is on the held-back samples, as everywhere in the demo."""

    latency_ms: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class DeviceResult:
    """The results of one device.

    Latencies are medians at batch 1, calls back to back, when nothing else runs; ``full_ms`` is the full model's,
    ``measured_ratio`` relates ``measured_ms`` to it, ``predicted_ratio`` their predictions, the call itself included.
    Accuracies are on ``held_back_samples``: of the subnet alone, of the full model, and of the device with the server,
    where ``share_early`` of the samples took an exit and ``share_asked`` were answered by the server. ``class_mix``:
    private samples per class; ``resumed``: number of resumed transfers; ``log_lines``: number of uploaded events.
    """

    budget_ratio: float
    full_ms: float
    budget_ms: float
    subnet: tuple[str, ...]
    predicted_ms: float
    predicted_ratio: float
    measured_ms: float
    measured_ratio: float
    accuracy_local: float
    full_accuracy_local: float
    accuracy_with_server: float
    share_early: float
    share_asked: float
    exits: tuple[str, ...]
    resumed: int
    log_lines: int
    held_back_samples: int
    class_mix: tuple[int, ...]
    pool: tuple[Point, ...]

    @cached_property
    def name(self) -> str:
        """For example ``60 %``."""
        return f"{self.budget_ratio:.0%}".replace("%", " %")

    @property
    def subnets_evaluated(self) -> int:
        """Number of subnets that the search evaluated."""
        return len(self.pool)


def simulate(ratio: float, *, delivery: Delivery, cut: bool, seed: int, progress: Progress) -> DeviceResult:
    """Simulate a device with a budget of ``ratio`` times the full latency; ``cut`` drops its connections once.

    1. draw private samples, and held-back ones with the same class mix; 2. download the bundle; 3. profile and adapt on
    the private samples; 4. choose exits and asking for that subnet, where they pay; 5. classify the held-back
    samples, with the server; 6. upload the log.

    Raises:
        InfeasibleBudgetError: no subnet is fast enough.
    """
    private = dirichlet_shift(load_dataset(PRIVATE), alpha=ALPHA, count=PRIVATE_SAMPLES, seed=seed)
    held_back = draw_like(load_dataset(HELD_BACK), like=private, count=HELD_BACK_SAMPLES, seed=seed)
    with _download(f"device-{ratio:.0%}", delivery, cut=cut, progress=progress) as model:
        full_accuracy = accuracy(model, held_back)
        found = _adapt(model, private, ratio=ratio, seed=seed, progress=progress)
        assert found.goal.latency_ms is not None
        assert found.measured is not None
        assert found.expected.latency_ms is not None
        accuracy_local, profile = accuracy(model, held_back), model.profile()
        overhead_ms = profile.call_overhead_ms
        served_plan = _choose_exits_and_asking(model, delivery, progress).plan
        served = _classify_with_server(model, held_back, delivery)
        return DeviceResult(
            budget_ratio=ratio,
            full_ms=found.measured.full_ms,
            budget_ms=found.goal.latency_ms,
            subnet=found.subnet.block_ids,
            predicted_ms=found.expected.latency_ms,
            predicted_ratio=(found.expected.latency_ms + overhead_ms) / (profile.original_ms + overhead_ms),
            measured_ms=found.measured.latency_ms,
            measured_ratio=found.measured.ratio,
            accuracy_local=accuracy_local,
            full_accuracy_local=full_accuracy,
            accuracy_with_server=float(served.right.mean()),
            share_early=served.share_early,
            share_asked=served.share_asked,
            exits=tuple(choice.exit for choice in served_plan.exits if choice.threshold < UNREACHABLE_CONFIDENCE),
            resumed=_times_resumed(model),
            log_lines=_upload_log(model, delivery),
            held_back_samples=len(held_back),
            class_mix=tuple(np.bincount(private.labels, minlength=len(private.class_names)).tolist()),
            pool=_pool(model, model.profile(), [candidate.subnet for candidate in found.pool], held_back),
        )


def _download(device: str, delivery: Delivery, *, cut: bool, progress: Progress) -> AdaptiveModel:
    if not cut:
        return delivery.open(device, progress)
    with cut_once(delivery.server, after_bytes=CUT_AFTER_BYTES) as address:
        return delivery.open(device, progress, server=address)


def _times_resumed(model: AdaptiveModel) -> int:
    return sum(line.event.resumed for line in read_log(model.log.path) if isinstance(line.event, Delivered))


def _choose_exits_and_asking(model: AdaptiveModel, delivery: Delivery, progress: Progress) -> Found:
    """Have exits and asking the server chosen for the subnet in use: whatever makes its answers better.

    On a device that sees few classes the subnet chosen for them may know more than the full model at the server.
    """
    samples = load_dataset(CALIBRATION)
    model.remote.connect(_answering(delivery))
    goal = Goal(share_asked=ASKED_SHARE)
    return model.adapt(samples.images, goal, {"exits", "ask"}, samples.labels, progress=progress)


def _answering(delivery: Delivery) -> RemoteModel:
    """The full model at the server; after a time-out the device answers."""
    name = f"{delivery.bundle}:images"
    return RemoteModel(server=delivery.server, model=name, privacy="inputs", timeout_s=TIMEOUT_S)


@dataclass(frozen=True)
class _Served:
    right: npt.NDArray[np.bool_]  # [samples]
    share_early: float
    share_asked: float


def _classify_with_server(model: AdaptiveModel, samples: ImageDataset, delivery: Delivery) -> _Served:
    """Classify, with hard samples sent to the server as the plan says."""
    model.remote.connect(_answering(delivery))
    answer = model(samples.images)
    model.remote.disconnect()
    return _Served(
        right=answer.output.argmax(axis=1) == samples.labels,
        share_early=sum(source.startswith("exit ") for source in answer.source) / len(samples),
        share_asked=sum(source == SERVER for source in answer.source) / len(samples),
    )


def _upload_log(model: AdaptiveModel, delivery: Delivery) -> int:
    with closing(make_transport(delivery.server)) as transport:
        return upload_log(model.log.path, delivery.server, transport, device=model.device_id).accepted


def accuracy(model: AdaptiveModel, dataset: ImageDataset) -> float:
    """The accuracy of the plan in use on ``dataset``."""
    return float(_right(model, dataset).mean())


def _right(model: AdaptiveModel, dataset: ImageDataset) -> npt.NDArray[np.bool_]:
    right: npt.NDArray[np.bool_] = model(dataset.images).output.argmax(axis=1) == dataset.labels
    return right


def _adapt(model: AdaptiveModel, private: ImageDataset, *, ratio: float, seed: int, progress: Progress) -> Found:
    """Adapt within ``ratio`` of the full latency."""
    goal, settings = Goal(latency_ratio=ratio, calls_per_second=BACK_TO_BACK), AdaptationSettings(seed=seed)
    return model.adapt(private.images, goal, labels=private.labels, settings=settings, progress=progress)


def _pool(
    model: AdaptiveModel, profile: Profile, subnets: Sequence[Subnet], held_back: ImageDataset
) -> tuple[Point, ...]:
    """The evaluated subnets for the picture: predicted latency, and accuracy on the held-back samples."""
    bundle: Bundle = model.bundle
    costs = profile.cost_model()
    runtime = make_runtime("onnxruntime", threads=1)
    evaluator = PrefixTreeEvaluator(
        bundle.supernet,
        lambda edges: runtime.load(bundle.stretch(edges)),
        model.prepare(held_back.images),
        held_back.labels,
        costs,
    )
    try:
        accuracies = evaluator.accuracies(subnets)
    finally:
        evaluator.close()
    return tuple(Point(costs.latency_ms(subnet), value) for subnet, value in zip(subnets, accuracies, strict=True))
