"""Adaptations of one network: every budget with every seed, on an idle machine and on a busy one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.burner import every_core_burning
from benchmarks.sure.networks import SureNetwork
from device_sdk.errors import PathweaveError
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.progress import Progress
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Subnet
from pathweave import AdaptiveModel

CONDITIONS: Mapping[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
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


def adapted(
    network: SureNetwork,
    state: Path,
    budget_ratios: Sequence[float],
    progress: Progress,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[Run]:
    """Every budget in every condition with a first seed, a second, and so on. The machine is idle again afterwards.

    Each condition has one profile of its own, which all its adaptations share: the budget is a share of the full
    model's latency, as ``pathweave adapt --latency-ratio`` sets it. Without a prior of classes, which ``shift`` judges.
    """
    end_s = clock() + network.seconds
    runs: list[Run] = []
    with contextlib.ExitStack() as stack, progress.task(f"adapt {network.name}", network.seeds) as task:
        models = {}
        for condition, burning in CONDITIONS.items():
            model = AdaptiveModel.open(network.folder, state_folder=state / condition)
            models[condition] = stack.enter_context(model)
            with burning():
                model.profile()
        for seed in range(network.seeds):
            if runs and clock() > end_s:
                break
            for condition, burning in CONDITIONS.items():
                task.note(f"{condition}, seed {seed}")
                with burning():
                    for ratio in budget_ratios:
                        runs.append(adapt_once(models[condition], network, condition, ratio, seed))
            task.advance()
    return runs


def adapt_once(model: AdaptiveModel, network: SureNetwork, condition: str, ratio: float, seed: int) -> Run:
    """One adaptation on the private samples, within ``ratio`` of the full model's latency. A refusal is a result."""
    settings = AdaptationSettings(seed=seed, time_limit_s=network.time_limit_s, use_prior=False)
    private = network.private
    try:
        found = model.adapt(private.images, Goal(latency_ratio=ratio), labels=private.labels, settings=settings)
    except PathweaveError as error:
        return Run(condition, ratio, seed, None, None, 0, 0.0, str(error))
    ratio_here = None if found.measured is None else found.measured.ratio
    return Run(condition, ratio, seed, found.subnet, ratio_here, found.considered, found.seconds)
