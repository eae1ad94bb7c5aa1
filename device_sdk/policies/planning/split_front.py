"""Splits of a decision that are each the fastest on some network: the choices as the network changes. Pure.

Kept as a ``PlanFront``, so that a device that holds a head moves between its cut points as one that plans moves between
plans.
"""

from __future__ import annotations

from collections.abc import Iterable

from device_sdk.bundles.bundle import Bundle
from device_sdk.offload.packing import BITS
from device_sdk.policies.measured_splits.decision import SplitDecision, with_split
from device_sdk.policies.measured_splits.limits import SplitLimits
from device_sdk.policies.planning.front import Offer, PlanFront, Way, best_on_networks
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import Edge, Plan
from device_sdk.supernet.requirement import Requirement


def split_front(bundle: Bundle, decision: SplitDecision, limits: SplitLimits) -> PlanFront:
    """The splits of ``decision`` within ``limits`` that are the fastest on some network, the deepest first.

    Beside the chosen one these are the ones in the subnet's own renditions and 8 bits.

    Where no server is in reach and the device does not hold the rest, the deepest is used: its fallback is the best.
    Accuracies are measured only for the splits that are kept.
    """
    requirement = Requirement(optimise="latency_ms", coverage=1.0)
    if limits.memory_mb is not None:
        requirement = Requirement(optimise="latency_ms", peak_bytes=round(limits.memory_mb * MB))
    own = decision.fallbacks.plan.subnet.edges
    left = [
        cost
        for cost in reversed(decision.costs)
        if limits.fits(cost) and (cost == decision.best or (_is_plain(cost, own) and cost.sends == "activations"))
    ]
    known = dict(decision.drops)
    while True:
        front = _front(bundle, decision, requirement, left)
        kept = {offer.plan for offer in front.offers}
        lossy = [cost for cost in left if _plan_of(bundle, decision, cost) in kept and _loses(cost, limits, known)]
        if not lossy:
            return front
        left = [cost for cost in left if cost not in lossy]


def _is_plain(cost: SplitCost, own: tuple[Edge, ...]) -> bool:
    """True if the device's part has the subnet's own renditions, and activations are sent in 8 bits."""
    return cost.head == own[: len(cost.head)] and set(cost.bits) <= {BITS}


def _loses(cost: SplitCost, limits: SplitLimits, known: dict[SplitCost, float]) -> bool:
    if limits.judge is None or limits.max_drop is None or not cost.tail:
        return False
    if cost not in known:
        known[cost] = limits.judge.drop(cost)
    return known[cost] > limits.max_drop


def _plan_of(bundle: Bundle, decision: SplitDecision, cost: SplitCost) -> Plan:
    return with_split(bundle, decision.fallbacks.plan, cost, decision.server, decision.fallbacks)


def _front(bundle: Bundle, decision: SplitDecision, requirement: Requirement, costs: Iterable[SplitCost]) -> PlanFront:
    offers = [
        Offer(_plan_of(bundle, decision, cost), None, cost.device_bytes, 0.0, 0.0, 0.0, (_way(cost),)) for cost in costs
    ]
    front = PlanFront(requirement, None, decision.uplink, max(decision.best.bytes_sent, 1), 0.0, 1, tuple(offers))
    return best_on_networks(front, [decision.uplink, None])


def _way(cost: SplitCost) -> Way:
    """Costs of one sample that do not depend on the network."""
    if not cost.tail:
        return Way(1, cost.device_ms)
    device_ms, server_ms = cost.device_ms + cost.packing_ms, cost.server_ms + cost.unpacking_ms
    return Way(1, device_ms, cost.bytes_sent, cost.handling_ms, server_ms)
