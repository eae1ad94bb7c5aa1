"""The one result of choosing: the plan, what it is expected and measured to cost, its rivals, and what limits them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from device_sdk.policies.deciding.promises import Promise
from device_sdk.policies.hybrid.choice import HybridChoice
from device_sdk.policies.measured_splits.decision import SplitDecision
from device_sdk.policies.measured_splits.region import Region
from device_sdk.policies.planning.choice import Choice, Option
from device_sdk.policies.planning.front import PlanFront
from device_sdk.policies.planning.plan_region import PlanRegion
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import PlanCost
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan, Subnet


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Latency of the chosen plan in the application when nothing else runs, without preparing the image.

    ``latency_ms``: at the goal's percentile, or of a plan with exits the mean; ``interval_ms``: its 95 % interval;
    ``median_ms``: at the median. ``within_budget_probability``: that it keeps the latency limit. ``full_ms``: of the
    full model in the same circumstances; under a memory cap without room for both, alone, and in pages if need be.
    ``slowdown``: of the device during the measurement, over quiet. ``prepare_ms``: of preparing one image.
    ``without_exits_ms``: the mean of its subnet alone, sample by sample in turns with it, where the plan has exits or a
    second path.
    """

    latency_ms: float
    interval_ms: tuple[float, float]
    median_ms: float
    within_budget_probability: float
    full_ms: float
    slowdown: float = 1.0
    prepare_ms: float = 0.0
    without_exits_ms: float | None = None

    @property
    def ratio(self) -> float:
        """The latency over the full model's, same run."""
        return self.latency_ms / self.full_ms


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best plan for a goal.

    ``choice``: the plan with its cost on the samples that chose, and the best of each kind of plan, or of a kind that
    breaks limits always the nearest to keeping them. ``goal``: with its latency in milliseconds; of subnets under a
    memory cap, with the cap as its limit. ``held_out``: cost on ``judged`` of the ``samples`` that did not choose, None
    without any; where a certainty is stated, these also tested the plans, so that it is a little too good.
    ``measured``: None where the plan was not timed here. ``accuracy_interval``: 95 % of the accuracy on new samples
    like these. ``full_accuracy``: the full model's, on the held-out samples. ``stopped``: why the search ended.
    ``notes``: what was left out, and why. ``pool``: the subnets that a search evaluated. ``front``: makes the plans for
    other networks, over the same samples; None where no network is known. ``split``, ``hybrid``: what plans of these
    kinds were chosen from. ``region``: makes the map of the fastest plans over uplinks and devices, of a
    split that was estimated or of all kinds with the connected servers; None where no network is known.
    """

    choice: Choice
    goal: Goal
    held_out: PlanCost | None = None
    measured: Measured | None = None
    accuracy_interval: tuple[float, float] | None = None
    full_accuracy: float | None = None
    samples: int = 0
    judged: int = 0
    seconds: float = 0.0
    stopped: str = "done"
    notes: tuple[str, ...] = ()
    pool: tuple[Candidate, ...] = ()
    front: Callable[[], PlanFront] | None = None
    split: SplitDecision | None = None
    hybrid: HybridChoice | None = None
    region: Region | PlanRegion | None = None

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.choice.plan

    @property
    def subnet(self) -> Subnet:
        """The chosen plan's subnet."""
        return self.plan.subnet

    @property
    def expected(self) -> PlanCost:
        """The plan's cost on the samples that chose."""
        return self.choice.cost

    @property
    def by_kind(self) -> Mapping[str, Option]:
        """The best plan of each kind, with the limits that it breaks."""
        return self.choice.by_kind

    @property
    def considered(self) -> int:
        """Number of plans that were judged."""
        return self.choice.considered

    @property
    def promise(self) -> Promise | None:
        """The promise of the accuracy, where the goal states a certainty."""
        return self.choice.promise
