"""Builds log events from the results of deliveries, profiles, searches, calibrations and splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.logs.adaptation_log import Adapted, Calibrated, Delivered, Infeasible, PlanChosen, Profiled, SplitChosen
from device_sdk.supernet.cost import Budget, PlanCost, Uplink

if TYPE_CHECKING:
    from device_sdk.delivery.download import Delivered as Delivery
    from device_sdk.policies.adaptation import Adaptation
    from device_sdk.policies.calibration import Calibration
    from device_sdk.policies.measured_splits.decision import SplitDecision
    from device_sdk.policies.planning.choice import Choice
    from device_sdk.policies.planning.plan_choice import Planned
    from device_sdk.profiling.profile import Profile
    from device_sdk.supernet.requirement import Requirement


def delivered(delivery: Delivery) -> Delivered:
    """A bundle came from a server."""
    return Delivered(
        how=delivery.source,
        version=delivery.version,
        blobs_fetched=delivery.blobs_fetched,
        bytes_fetched=delivery.bytes_fetched,
        resumed=delivery.resumed,
        failure=delivery.failure,
    )


def profiled(profile: Profile) -> Profiled:
    """All blocks were measured."""
    predict = profile.cost_model().latency_ms
    errors = [abs(predict(measured.subnet) / measured.measured_ms - 1) for measured in profile.fitted]
    return Profiled(
        original_ms=profile.original_ms,
        scale=profile.scale,
        offset_ms=profile.offset_ms,
        median_error=float(np.median(errors)),
        nodes_by_provider=profile.nodes_by_provider,
    )


def adapted(adaptation: Adaptation) -> Adapted:
    """A search ended and its subnet is in use."""
    return Adapted(
        budget_latency_ms=adaptation.budget.latency_ms,
        budget_memory_mb=adaptation.budget.memory_mb,
        subnet=str(adaptation.subnet),
        predicted_ms=adaptation.predicted_ms,
        measured_ms=adaptation.measured_ms,
        predicted_peak_bytes=adaptation.predicted_peak_bytes,
        accuracy_search=adaptation.accuracy_search,
        accuracy_holdout=adaptation.accuracy_holdout,
        samples=adaptation.search_samples,
        subnets_evaluated=adaptation.subnets_evaluated,
        seconds=adaptation.seconds,
        stopped=adaptation.stopped,
        within_budget_probability=adaptation.within_budget_probability,
        slowdown=adaptation.slowdown,
    )


def infeasible(budget: Budget, error: InfeasibleBudgetError) -> Infeasible:
    """No subnet fits the budget."""
    return Infeasible(
        budget_latency_ms=budget.latency_ms,
        budget_memory_mb=budget.memory_mb,
        nearest=" ".join(error.nearest),
        nearest_latency_ms=error.nearest_latency_ms,
    )


def calibrated(calibration: Calibration) -> Calibrated:
    """Exits and the escalation threshold were set."""
    plan = calibration.plan
    return Calibrated(
        subnet=str(plan.subnet),
        exits=tuple(choice.exit for choice in plan.exits),
        thresholds=tuple(choice.threshold for choice in plan.exits),
        escalation_threshold=plan.hard_threshold,
        samples=calibration.samples,
        accuracy=calibration.accuracy,
        accuracy_without_exits=calibration.accuracy_without_exits,
        share_early=calibration.share_early,
        share_escalated=calibration.share_escalated,
        mean_ms=calibration.mean_ms,
        without_exits_ms=calibration.without_exits_ms,
    )


def split_chosen(decision: SplitDecision) -> SplitChosen:
    """The split of the subnet was decided."""
    split = decision.plan.split
    return SplitChosen(
        subnet=str(decision.plan.subnet),
        position=split.position if split is not None else None,
        uplink_mbps=decision.uplink.mbps,
        predicted_ms=decision.best.latency_ms,
        on_device_ms=None if decision.is_head_only else decision.on_device.latency_ms,
        bytes_sent=decision.best.bytes_sent,
    )


def followed(choice: Choice, requirement: Requirement, uplink: Uplink | None, *, samples: int) -> PlanChosen:
    """The network had changed, and the plan with it; costs are those on the samples that chose."""
    where = "out of reach" if uplink is None else f"{uplink.mbps:.3g} Mbit/s, {uplink.round_trip_ms:.3g} ms round trip"
    return _chosen(choice, choice.cost, requirement, samples, (f"the network changed: {where}",))


def planned(found: Planned, requirement: Requirement) -> PlanChosen:
    """A plan was chosen for a requirement and is in use."""
    cost = found.held_out or found.choice.cost
    return _chosen(found.choice, cost, requirement, found.samples, found.servers.notes)


def _chosen(
    choice: Choice, cost: PlanCost, requirement: Requirement, samples: int, notes: tuple[str, ...]
) -> PlanChosen:
    return PlanChosen(
        plan_kind=choice.kind,
        subnet=str(choice.plan.subnet),
        optimise=requirement.optimise,
        limits={name: float(limit) for name, limit, _ in requirement.limits},
        considered=choice.considered,
        samples=samples,
        accuracy=cost.accuracy,
        latency_ms=cost.latency_ms,
        energy_mj=cost.energy_mj,
        bytes_sent=cost.bytes_sent,
        share_early=cost.share_early,
        share_asked=cost.share_asked,
        share_abstained=cost.share_abstained,
        notes=notes,
        share_asked_early=cost.share_asked_early,
        saved=choice.saved_by_asking_early,
    )
