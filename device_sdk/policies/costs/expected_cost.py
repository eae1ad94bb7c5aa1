"""The one function that judges every plan."""

from __future__ import annotations

from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.route import Route
from device_sdk.supernet.cost import CostModel, PlanCost, Power
from device_sdk.supernet.plan import Abstain, Ask, Cascade, Plan
from device_sdk.supernet.supernet import Supernet


def expected_cost(
    supernet: Supernet,
    plan: Plan,
    evidence: Evidence,
    cost_model: CostModel,
    network: Network | None = None,
    power: Power | None = None,
) -> PlanCost:
    """The cost of ``plan`` per sample, estimated from the evidence.

    Accuracy is that of the samples that get an answer; None if hard samples are sent to a server whose logits are
    missing. Latency is None if the times of a server in use, or of the link, are missing. Energy needs ``power``.

    Raises:
        UsageError: the evidence lacks the logits of the plan's own path or of one of its exits.
    """
    return whole_route(supernet, plan, evidence, cost_model, network).cost(power)


def whole_route(
    supernet: Supernet, plan: Plan, evidence: Evidence, cost_model: CostModel, network: Network | None = None
) -> Route:
    """The route of all samples through ``plan``, hard ones included. Raises as ``expected_cost``."""
    route = Route.to_end(supernet, plan, evidence, cost_model, network)
    if isinstance(plan.hard, Abstain):
        route.abstain(plan.hard)
    elif isinstance(plan.hard, Ask):
        route.ask(plan.hard, network)
    elif isinstance(plan.hard, Cascade):
        route.cascade(plan.hard)
    return route
