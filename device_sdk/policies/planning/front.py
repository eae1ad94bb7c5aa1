"""Plans that are each the best on some network: the stored result of choosing."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.offload.link_estimate import PlannedTail
from device_sdk.offload.packing import BITS
from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.route import Route
from device_sdk.policies.measured_splits.decision import SplitDecision, with_split
from device_sdk.policies.measured_splits.fastest import SplitLimits
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.supernet.cost import MB, UPLINKS, PlanCost, Power, Uplink
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Ask, Edge, Plan, RemoteRef
from device_sdk.supernet.supernet import Supernet

FRONT_FORMAT = 1  # of what is stored
_MBPS = tuple(10 ** (power / 2) for power in range(-6, 7))  # 0.001 to 1,000
_ROUND_TRIPS_MS = (0.0, 10.0, 100.0, 1000.0)
_MOST_OFFERS = 256


class Way(msgspec.Struct, frozen=True):
    """Cost of answering ``samples`` in one way: time here, bytes sent, if any, and time at the server, of each.

    ``beside_ms``: transfer time beyond that of the bytes on the uplink.
    """

    samples: int
    device_ms: float
    sent_bytes: int = 0
    beside_ms: float = 0.0
    server_ms: float = 0.0


class Offer(msgspec.Struct, frozen=True):
    """A plan, the part of its cost that does not depend on the network, and the ways that its samples are answered."""

    plan: Plan
    accuracy: float | None
    peak_bytes: int
    share_early: float
    share_asked: float
    share_abstained: float
    ways: tuple[Way, ...]
    share_asked_early: float = 0.0

    @classmethod
    def of(cls, plan: Plan, route: Route, uplink: Uplink) -> Offer:
        """``route``: of all samples through ``plan``, over ``uplink``; its times are known."""
        columns = np.stack([route.device_ms, route.bytes_sent, route.transfer_ms, route.server_ms], axis=1)
        rows, counts = np.unique(columns, axis=0, return_counts=True)
        ways = [
            Way(count, own_ms, int(size), transfer_ms - uplink.transfer_ms(int(size)) if size else 0.0, server_ms)
            for (own_ms, size, transfer_ms, server_ms), count in zip(rows.tolist(), counts.tolist(), strict=True)
        ]
        cost = route.cost()
        return cls(
            plan,
            cost.accuracy,
            cost.peak_bytes,
            cost.share_early,
            cost.share_asked,
            cost.share_abstained,
            tuple(ways),
            cost.share_asked_early,
        )

    def cost(self, uplink: Uplink | None, power: Power | None) -> PlanCost:
        """The cost of the plan over ``uplink``; None: no server is in reach, so costs that need one are unknown."""
        counts = np.array([way.samples for way in self.ways])
        device_ms, sent, server_ms = np.array([(way.device_ms, way.sent_bytes, way.server_ms) for way in self.ways]).T
        transfer_ms = np.array([_transfer_ms(way, uplink) for way in self.ways])
        total_ms = device_ms + transfer_ms + server_ms
        is_known, count = bool(np.isfinite(total_ms).all()), counts.sum()
        energy_mj = None
        if power is not None and is_known:
            each = power.active_w * device_ms + power.radio_w * transfer_ms + power.waiting_w * server_ms
            energy_mj = float(counts @ each / count)
        return PlanCost(
            accuracy=self.accuracy,
            latency_ms=float(counts @ total_ms / count) if is_known else None,
            p95_latency_ms=float(np.percentile(np.repeat(total_ms, counts), 95)) if is_known else None,
            bytes_sent=float(counts @ sent / count),
            peak_bytes=self.peak_bytes,
            energy_mj=energy_mj,
            share_early=self.share_early,
            share_asked=self.share_asked,
            share_asked_early=self.share_asked_early,
            share_abstained=self.share_abstained,
        )


def _transfer_ms(way: Way, uplink: Uplink | None) -> float:
    if not way.sent_bytes:
        return 0.0
    if uplink is None:
        return math.inf
    return max(uplink.transfer_ms(way.sent_bytes) + way.beside_ms, uplink.round_trip_ms)


class PlanFront(msgspec.Struct, frozen=True):
    """The offers for a requirement, and the network and server that they were made for.

    ``input_bytes``: size of a request with one input; ``answer_ms``: the time of the server that the plan for that
    network asks; ``samples``: number
    of samples that plans were judged on.
    """

    requirement: Requirement
    power: Power | None
    uplink: Uplink
    input_bytes: int
    answer_ms: float
    samples: int
    offers: tuple[Offer, ...]

    def best(self, uplink: Uplink | None) -> Choice:
        """The offer that the requirement puts first over ``uplink``, or the one that comes nearest to it."""
        judged = [(offer.plan, offer.cost(uplink, self.power)) for offer in self.offers]

        def order(pair: tuple[Plan, PlanCost]) -> tuple[float, float, float]:
            cost = pair[1]
            latency_ms = math.inf if cost.latency_ms is None else cost.latency_ms
            return self.requirement.excess(cost), -self.requirement.value(cost), latency_ms

        plan, cost = min(judged, key=order)
        return Choice(plan, cost, {}, len(judged), self.requirement.misses(cost))

    def cheapest_tail(self) -> PlannedTail | None:
        """The tail of the plan that sends the least inside the network; None if none sends anything there."""
        found = [
            (way.sent_bytes, PlannedTail(split.position, split.tail, split.bits, way.beside_ms + way.server_ms))
            for offer in self.offers
            for way in offer.ways
            if (split := offer.plan.split) is not None and split.position and way.sent_bytes
        ]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def with_offers(self, fits: Callable[[Plan], bool]) -> PlanFront | None:
        """The same with the plans that fit; None if none does."""
        offers = tuple(one for one in self.offers if fits(one.plan))
        return msgspec.structs.replace(self, offers=offers) if offers else None

    def known_to(self, supernet: Supernet) -> PlanFront | None:
        """The same with only the sound offers whose plans ``supernet`` can run; None if there are none."""

        def is_plan(plan: Plan) -> bool:
            try:
                supernet.check_plan(plan)
            except UsageError:
                return False
            return True

        sound = msgspec.structs.replace(self, offers=tuple(filter(_is_sound, self.offers[:_MOST_OFFERS])))
        return sound.with_offers(is_plan)


def _is_sound(offer: Offer) -> bool:
    numbers = [(way.device_ms, way.beside_ms, way.server_ms) for way in offer.ways]
    counts = [way.samples for way in offer.ways]
    is_count = bool(counts) and all(0 < count < 10**6 for count in counts) and sum(counts) < 10**6
    return is_count and all(map(math.isfinite, itertools.chain(*numbers)))


def make_front(
    nearest: Callable[[Network | None], Choice],
    route: Callable[[Plan, Network], Route],
    requirement: Requirement,
    network: Network,
    power: Power | None,
) -> PlanFront:
    """Plan for typical networks, the present one, and none; keep the plans that are the best on any of many.

    Args:
        nearest: the planner, for the requirement; ``route``: of its samples through a plan.
    """
    uplinks = dict.fromkeys((network.uplink, *UPLINKS.values()))
    choices = [nearest(dataclasses.replace(network, uplink=uplink)) for uplink in uplinks]
    choices.append(nearest(None))
    plans = dict.fromkeys(plan for choice in choices for plan in _plans(choice))
    offers = []
    for plan in plans:
        found = route(plan, network)
        if found.latency_known and found.accuracy_known:
            offers.append(Offer.of(plan, found, network.uplink))
    asked = _asked(choices[0].plan) or next(iter(network.answer_ms), None)
    answer_ms = 0.0 if asked is None else network.answer_ms.get(asked, 0.0)
    samples = sum(way.samples for way in offers[0].ways) if offers else 0
    everything = PlanFront(requirement, power, network.uplink, network.input_bytes, answer_ms, samples, tuple(offers))
    return best_on_networks(everything, [*uplinks, None])


def best_on_networks(front: PlanFront, uplinks: Iterable[Uplink | None]) -> PlanFront:
    """``front`` with the offers that are the best on one of ``uplinks``, or on one of many others."""
    grid = [Uplink(mbps, trip_ms) for mbps in _MBPS for trip_ms in _ROUND_TRIPS_MS]
    best = {front.best(uplink).plan for uplink in (*uplinks, *grid)}
    return msgspec.structs.replace(front, offers=tuple(one for one in front.offers if one.plan in best))


def _asked(plan: Plan) -> RemoteRef | None:
    """The server's model that the plan sends inputs to."""
    if isinstance(plan.hard, Ask) and plan.hard.sends == "input":
        return plan.hard.server
    return plan.split.server if plan.split is not None and plan.split.is_whole else None


def _plans(choice: Choice) -> Iterable[Plan]:
    return choice.plan, *(option.plan for option in choice.by_kind.values())


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
