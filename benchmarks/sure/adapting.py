"""Adaptations of one network: every budget with every seed, on an idle machine and on a busy one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.burner import every_core_burning
from benchmarks.sure.networks import SureNetwork
from device_sdk.errors import PathweaveError
from device_sdk.policies.adaptation import AdaptationSettings
from device_sdk.progress import Progress
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.plan import Subnet
from pathweave import AdaptiveModel

CONDITIONS: Mapping[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "idle": contextlib.nullcontext,
    "busy": every_core_burning,
}


@dataclass(frozen=True)
class Run:
    """One adaptation. ``subnet`` is None where it was refused, and ``refusal`` says why."""

    condition: str
    budget_ratio: float  # of the full model's latency
    seed: int
    subnet: Subnet | None
    measured_ratio: float | None
    evaluated: int
    seconds: float
    refusal: str = ""


def adapted(network: SureNetwork, state: Path, budget_ratios: Sequence[float], progress: Progress) -> list[Run]:
    """All adaptations. The machine is idle again afterwards.

    Each condition has one profile of its own, which all its adaptations share: the budget is a share of the full
    latency in it, as ``pathweave adapt --latency-ratio`` sets it.
    """
    runs = []
    total = len(CONDITIONS) * len(budget_ratios) * network.seeds
    with progress.task(f"adapt {network.name}", total) as task:
        for condition, burning in CONDITIONS.items():
            with burning(), AdaptiveModel.open(network.folder, state_folder=state / condition) as model:
                full_ms = model.profile().original_ms
                for ratio in budget_ratios:
                    for seed in range(network.seeds):
                        task.note(f"{condition}, {ratio:g}, seed {seed}")
                        runs.append(_run(model, network, condition, ratio, seed, ratio * full_ms))
                        task.advance()
    return runs


def _run(model: AdaptiveModel, network: SureNetwork, condition: str, ratio: float, seed: int, latency_ms: float) -> Run:
    settings = AdaptationSettings(seed=seed, time_limit_s=network.time_limit_s)
    private = network.private
    try:
        found = model.adapt(private.images, private.labels, Budget(latency_ms=latency_ms), settings=settings)
    except PathweaveError as error:
        return Run(condition, ratio, seed, None, None, 0, 0.0, str(error))
    return Run(condition, ratio, seed, found.subnet, found.measured_ratio, found.subnets_evaluated, found.seconds)
