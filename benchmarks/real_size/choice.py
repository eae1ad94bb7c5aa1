"""The subnet that ``adapt`` chooses within a budget."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.real_size.photographs import Photographs
from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.workspace import Workspace
from device_sdk.policies import chooser
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan, Subnet

HOLDOUT_SHARE = 0.05  # #search is small, and #report judges


@dataclass(frozen=True)
class Chosen:
    """A subnet, and the cost of finding it."""

    subnet: Subnet
    evaluated: int
    seconds: float


def choose(
    bundle: Bundle,
    runtime: OnnxRuntime,
    profile: Profile,
    search: Photographs,
    ratio: float,
    *,
    seed: int,
    limit_s: float,
    progress: Progress,
) -> Chosen:
    """Choice of the product's adaptation on ``search`` within ``ratio`` of the full model's latency.

    Raises:
        InfeasibleBudgetError: nothing measured within the budget.
    """
    found = chooser.choose(
        search.inputs(bundle.manifest.preprocessing),
        search.labels,
        Goal(latency_ratio=ratio),
        {"subnets"},
        chooser.Here(Workspace(bundle, runtime), profile, Plan(bundle.supernet.original)),
        settings=AdaptationSettings(holdout_share=HOLDOUT_SHARE, time_limit_s=limit_s, seed=seed, use_prior=False),
        progress=progress,
    )
    return Chosen(found.subnet, found.considered, found.seconds)
