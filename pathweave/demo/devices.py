"""The devices of the demo: each has its own data and its own budget, and nothing but a bundle and a public key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from device_sdk.adaptation import Adaptation, AdaptationSettings
from device_sdk.bundle import Bundle
from device_sdk.cost import Budget
from device_sdk.datasets import ImageDataset, dirichlet_shift, draw_like, load_dataset
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.graph import Subnet
from device_sdk.profiling import Profile
from device_sdk.progress import Progress
from device_sdk.runtimes import make_runtime
from device_sdk.search import PrefixTreeEvaluator
from device_sdk.session import AdaptiveModel

PRIVATE, HELD_BACK = "digits#search", "digits#report"
PRIVATE_SAMPLES = 150
HELD_BACK_SAMPLES = 100  # no class of the held-back part is too small for that, whatever the mix
ALPHA = 0.5  # of the Dirichlet distribution of classes
PROFILES = 3  # at most so many, should the machine change its speed between profile and adaptation


@dataclass(frozen=True)
class Delivery:
    """What all devices get, and where they keep their own."""

    bundle: Path
    public_key: Path
    state: Path

    def open(self, device: str, progress: Progress) -> AdaptiveModel:
        """The bundle as a device opens it for the first time: with the full model as its plan."""
        return AdaptiveModel.open(
            self.bundle, trust=self.public_key, state_folder=self.state / device, progress=progress
        )


@dataclass(frozen=True)
class Point:
    """A subnet that a device evaluated. ``accuracy`` is that on the held-back samples, as everywhere in the demo."""

    latency_ms: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class DeviceResult:
    """What became of one device.

    Latencies are medians at batch 1; ``full_ms`` is the full model's on this device. Accuracies are shares of right
    answers on ``held_back_samples``; ``class_mix`` counts the device's private samples by class.
    """

    budget_ratio: float
    full_ms: float
    budget_ms: float
    subnet: tuple[str, ...]
    predicted_ms: float
    measured_ms: float
    accuracy_local: float
    full_accuracy_local: float
    held_back_samples: int
    class_mix: tuple[int, ...]
    pool: tuple[Point, ...]

    @cached_property
    def name(self) -> str:
        """For example ``60 %``."""
        return f"{self.budget_ratio:.0%}".replace("%", " %")

    @property
    def subnets_evaluated(self) -> int:
        """How many subnets the search looked at."""
        return len(self.pool)


def simulate(ratio: float, *, delivery: Delivery, seed: int, progress: Progress) -> DeviceResult:
    """One device with a budget of ``ratio`` times the full model's latency.

    1. draw private samples, and held-back ones with the same class mix; 2. open the bundle; 3. profile and adapt on
    the private samples; 4. classify the held-back ones.

    Raises:
        InfeasibleBudgetError: no subnet is fast enough, whatever the machine's noise.
    """
    private = dirichlet_shift(load_dataset(PRIVATE), alpha=ALPHA, count=PRIVATE_SAMPLES, seed=seed)
    held_back = draw_like(load_dataset(HELD_BACK), like=private, count=HELD_BACK_SAMPLES, seed=seed)
    with delivery.open(f"device-{ratio:.0%}", progress) as model:
        full_accuracy = accuracy(model, held_back)
        profile, adaptation = _adapt(model, private, ratio=ratio, seed=seed, progress=progress)
        assert adaptation.budget.latency_ms is not None
        return DeviceResult(
            budget_ratio=ratio,
            full_ms=profile.original_ms,
            budget_ms=adaptation.budget.latency_ms,
            subnet=adaptation.subnet.block_ids,
            predicted_ms=adaptation.predicted_ms,
            measured_ms=adaptation.measured_ms,
            accuracy_local=accuracy(model, held_back),
            full_accuracy_local=full_accuracy,
            held_back_samples=len(held_back),
            class_mix=tuple(np.bincount(private.labels, minlength=len(private.class_names)).tolist()),
            pool=_pool(model, profile, [candidate.subnet for candidate in adaptation.pool], held_back),
        )


def accuracy(model: AdaptiveModel, dataset: ImageDataset) -> float:
    """The share of ``dataset`` that the plan in use classifies rightly."""
    return float((model(dataset.images).output.argmax(axis=1) == dataset.labels).mean())


def _adapt(
    model: AdaptiveModel, private: ImageDataset, *, ratio: float, seed: int, progress: Progress
) -> tuple[Profile, Adaptation]:
    """Adapt within ``ratio`` of the full latency; a machine that got slower meanwhile is profiled again."""
    for attempt in range(1, PROFILES + 1):
        profile = model.profile(again=attempt > 1, progress=progress)
        budget = Budget(latency_ms=ratio * profile.original_ms)
        settings = AdaptationSettings(seed=seed)
        try:
            adapted = model.adapt(private.images, private.labels, budget, settings=settings, progress=progress)
            return profile, adapted
        except InfeasibleBudgetError:
            if attempt == PROFILES:
                raise
    raise AssertionError("the last attempt returns or raises")


def _pool(
    model: AdaptiveModel, profile: Profile, subnets: Sequence[Subnet], held_back: ImageDataset
) -> tuple[Point, ...]:
    """The evaluated subnets for the picture: predicted latency, accuracy on samples that played no part in choosing."""
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
    return tuple(Point(costs.latency_ms(one), right) for one, right in zip(subnets, accuracies, strict=True))
