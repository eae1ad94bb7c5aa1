"""Builds log events from the results of deliveries, profiles, searches, calibrations and splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.logs.adaptation_log import Adapted, Delivered, Infeasible, PlanChosen, Profiled, SplitChosen
from device_sdk.supernet.cost import PlanCost, Uplink

if TYPE_CHECKING:
    from device_sdk.delivery.download import Delivered as Delivery
    from device_sdk.policies.found import Found
    from device_sdk.policies.measured_splits.decision import SplitDecision
    from device_sdk.policies.planning.choice import Choice
    from device_sdk.profiling.profile import Profile
    from device_sdk.supernet.goal import Goal
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


def chosen(found: Found) -> Adapted | PlanChosen | SplitChosen:
    """A plan was chosen and is in use: a subnet of a search, a split of the subnet in use, or any other."""
    if found.split is not None:
        return split_chosen(found.split)
    if found.measured is None or not found.pool or not found.goal.is_budget or found.choice.kind != "subnet":
        cost = found.held_out or found.expected
        return _chosen(found.choice, cost, found.goal.requirement(), found.samples, found.notes)
    return Adapted(
        budget_latency_ms=found.goal.latency_ms,
        budget_memory_mb=found.goal.memory_mb,
        subnet=str(found.subnet),
        predicted_ms=found.expected.latency_ms or 0.0,
        measured_ms=found.measured.latency_ms,
        predicted_peak_bytes=found.expected.peak_bytes,
        accuracy_search=found.expected.accuracy or 0.0,
        accuracy_holdout=None if found.held_out is None else found.held_out.accuracy,
        samples=found.samples - found.judged,
        subnets_evaluated=found.considered,
        seconds=found.seconds,
        stopped=found.stopped,
        within_budget_probability=found.measured.within_budget_probability,
        slowdown=found.measured.slowdown,
    )


def infeasible(goal: Goal, error: InfeasibleBudgetError) -> Infeasible:
    """No plan keeps the goal."""
    return Infeasible(
        budget_latency_ms=goal.latency_ms,
        budget_memory_mb=goal.memory_mb,
        nearest=" ".join(error.nearest),
        nearest_latency_ms=error.nearest_latency_ms,
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
