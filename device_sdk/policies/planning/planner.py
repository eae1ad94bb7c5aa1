"""One planner over subnets, exits, deciders, abstention, asking a server and splits: the best plan for a requirement.

Exhaustive: plans that differ in a threshold alone are judged together in closed form (``threshold_sweep``), all others
one by one. Exits with asking are optimised together too (``joint_thresholds``). The plan that wins is judged again by
``expected_cost``. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from device_sdk.errors import UsageError
from device_sdk.offload.packing import BITS, can_travel
from device_sdk.offload.remote_model import Privacy
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost, whole_route
from device_sdk.policies.costs.route import Asking, Route
from device_sdk.policies.costs.split_sweep import Crossing, sweep_splits
from device_sdk.policies.costs.threshold_sweep import Costs, Ranking, Sweep
from device_sdk.policies.deciding.decider_fitting import TOP_TWO, Viewed, fit_best_logistic, fit_logistic
from device_sdk.policies.deciding.router_fitting import fit_router_if_better
from device_sdk.policies.joint_thresholds.plans import JointPlans
from device_sdk.policies.planning.choice import Choice, Option
from device_sdk.policies.planning.families import Families, Family
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel, Power
from device_sdk.supernet.plan import (
    UNFITTED,
    Abstain,
    Ask,
    Decider,
    ExitChoice,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
    Subnet,
)
from device_sdk.supernet.requirement import Requirement
from device_sdk.supernet.supernet import Supernet

_ROUTER_SAMPLES = 300  # below, a router has nothing to learn from
_ABSTAINS = Abstain(MaxConfidence(0.0))


@dataclass(frozen=True)
class _Local:
    """A plan that runs here, the route of the samples through it, and all thresholds of its deciders."""

    plan: Plan
    route: Route
    abstaining: list[Ranking]
    asking: list[Ranking]


class Planner:
    """Chooses among all plans that ``evidence`` can judge.

    Args:
        subnets: those that the device may run; the evidence has their logits.
        exit_sets: exits with thresholds, calibrated for a subnet; each set is tried with everything else.
        exits: of each subnet those whose thresholds are optimised together with that of asking.
        server: the server's model that may be asked, None for none.
        tail_server: the server's model that runs tails, None for none.
        privacy: limit of what may be sent: plans that send more are left out.
    """

    def __init__(
        self,
        supernet: Supernet,
        evidence: Evidence,
        cost_model: CostModel,
        subnets: Sequence[Subnet],
        *,
        exit_sets: Mapping[Subnet, Sequence[tuple[ExitChoice, ...]]] | None = None,
        exits: Mapping[Subnet, Sequence[ExitChoice]] | None = None,
        server: RemoteRef | None = None,
        tail_server: RemoteRef | None = None,
        privacy: Privacy = "inputs",
    ) -> None:
        if not subnets:
            raise UsageError("there are no subnets to plan with")
        self._supernet, self._evidence, self._costs = supernet, evidence, cost_model
        self._server = server if privacy == "inputs" else None
        self._tail_server = tail_server if privacy != "never" else None
        self._sends_input = privacy == "inputs"
        sets = exit_sets or {}
        self._last: tuple[Network | None, Power | None, Families] | None = None
        self._here: dict[Power | None, list[Family]] = {}
        self._remote_rankings: list[Ranking] | None = None
        self._fitted: dict[tuple[Subnet, RemoteRef | None], list[Decider]] = {}
        self._local = [
            self._prepared(Plan(subnet, chosen)) for subnet in subnets for chosen in ((), *sets.get(subnet, ()))
        ]
        self._joint = self._joint_plans(exits or {})

    def _prepared(self, plan: Plan) -> _Local:
        route = Route.to_end(self._supernet, plan, self._evidence, self._costs)
        deciders = self._known_deciders(plan.subnet, None)
        asking = self._known_deciders(plan.subnet, self._server) if self._server is not None else []
        return _Local(plan, route, _rankings(route, deciders), _rankings(route, asking))

    def _joint_plans(self, exits: Mapping[Subnet, Sequence[ExitChoice]]) -> JointPlans | None:
        if self._server is None:
            return None
        rankings = {local.plan.subnet: local.asking for local in self._local if not local.plan.exits}
        return JointPlans(self._supernet, self._evidence, self._costs, exits, rankings, self._server)

    def best(self, requirement: Requirement, network: Network | None = None, power: Power | None = None) -> Choice:
        """The best plan under the requirement's limits.

        Raises:
            InfeasibleBudgetError: no plan keeps them; names the nearest, and what it misses.
        """
        return self.nearest(requirement, network, power).required()

    def nearest(self, requirement: Requirement, network: Network | None = None, power: Power | None = None) -> Choice:
        """The best plan, or where none keeps all limits, the one that comes nearest to it."""
        families = self._known_families(network, power)
        plans = families.best(requirement)
        by_kind = {kind: self._option(plans[kind], requirement, network, power) for kind in families.kinds}
        best = next(one for one in by_kind.values() if one.plan == plans[""])
        late = None
        joint_search = None if self._joint is None else self._joint.search(requirement, network, power)
        for asks_early in (False, True):
            value = -math.inf if best.misses else requirement.value(best.cost)
            plan = None if joint_search is None else joint_search.best(better_than=value, asks_early=asks_early)
            joint = None if plan is None else self._option(plan, requirement, network, power)
            if joint is not None and not joint.misses:
                late = best if joint.plan.asks_early else None
                best = by_kind[joint.plan.kind] = joint
        return Choice(best.plan, best.cost, by_kind, families.count, best.misses, late=late)

    def route(self, plan: Plan, network: Network | None) -> Route:
        """The route of the planner's samples through ``plan``. Raises as ``expected_cost``."""
        return whole_route(self._supernet, plan, self._evidence, self._costs, network)

    def _known_families(self, network: Network | None, power: Power | None) -> Families:
        """All families, kept for further requirements on the same network."""
        if self._last is None or self._last[:2] != (network, power):
            self._last = network, power, Families(list(self._families(network, power)))
        return self._last[2]

    def _option(self, plan: Plan, requirement: Requirement, network: Network | None, power: Power | None) -> Option:
        cost = expected_cost(self._supernet, plan, self._evidence, self._costs, network, power)
        return Option(plan, cost, requirement.misses(cost))

    def _known_deciders(self, subnet: Subnet, server: RemoteRef | None) -> list[Decider]:
        if (subnet, server) not in self._fitted:
            self._fitted[subnet, server] = self._deciders(subnet, server)
        return self._fitted[subnet, server]

    def _deciders(self, subnet: Subnet, server: RemoteRef | None) -> list[Decider]:
        """Deciders of a fixed score, and those fitted to the subnet's logits: to the gain of asking, given a server."""
        logits = self._evidence.ends[subnet]
        views = self._evidence.views.get(subnet)
        easy = self._gains_nothing(logits, server)
        viewed = None if views is None else Viewed(views, self._gains_nothing(views, server))
        best = fit_best_logistic(logits, easy, views=viewed)
        logistic = None if best is None else best.decider
        fitted: list[Decider | None] = [fit_logistic(logits, easy, features=TOP_TWO, by_class=False), logistic]
        if server is not None and best is not None and len(logits) >= _ROUTER_SAMPLES:
            router = fit_router_if_better(logits, easy, best.eases, views=viewed)
            fitted.append(None if router is None else router.decider)
        return [*UNFITTED, *(decider for decider in fitted if decider is not None)]

    def _gains_nothing(self, own: Array, server: RemoteRef | None) -> npt.NDArray[np.bool_]:
        """Mask [..., count]: ``own`` logits [..., count, classes] are right, or still wrong after asking."""
        right = self._evidence.right(own)
        asked = None if server is None else self._evidence.asked(server, own)
        return right if asked is None else right | ~self._evidence.right(asked)

    def _families(self, network: Network | None, power: Power | None) -> Iterator[Family]:
        yield from self._families_here(power)
        crossings: dict[Subnet, list[Crossing]] = {}
        for local in self._local:
            plan = local.plan
            if local.asking:
                assert self._server is not None
                ask = Ask(local.asking[0].kind, self._server)
                yield _swept(plan, ask, Sweep(local.asking), local.route.asking(ask, network), power)
            if plan.subnet not in crossings:
                crossings[plan.subnet] = list(self._crossings(local.route, network))
            yield from self._crossing(local, crossings[plan.subnet], network, power)

    def _families_here(self, power: Power | None) -> list[Family]:
        """Plans that need no server, kept for all networks."""
        if power not in self._here:
            found = self._here[power] = []
            for local in self._local:
                found.append(Family(local.plan.kind, Costs.of(local.route.cost(power)), _always(local.plan)))
                if local.abstaining:
                    found.append(_swept(local.plan, _ABSTAINS, Sweep(local.abstaining), None, power))
        return self._here[power]

    def _crossing(
        self, local: _Local, crossings: Sequence[Crossing], network: Network | None, power: Power | None
    ) -> Iterator[Family]:
        """Plans that cross to a server: all of the plan's own splits, and abstention behind the best of them."""
        exits = local.plan.exits
        last = max((self._supernet.exit(choice.exit).position for choice in exits), default=0)
        fitting = [one for one in crossings if one.split.position >= last]
        for group in ([o for o in fitting if not o.split.position], [o for o in fitting if o.split.position]):
            if group:
                yield from self._crossing_at(local, group, network, power)
        if self._server in self._evidence.servers and not exits and not local.plan.input_size:
            assert self._server is not None
            yield from self._remote(replace(local.plan, split=Split(0, (), (), self._server)), network, power)

    def _crossing_at(
        self, local: _Local, crossings: Sequence[Crossing], network: Network | None, power: Power | None
    ) -> Iterator[Family]:
        found = sweep_splits(local.route, crossings, power)
        plans = [replace(local.plan, split=split) for split in found.splits]
        yield Family(plans[0].kind, found.costs, plans.__getitem__)
        tried = [*local.abstaining[:1], *local.abstaining[1:][-1:]]
        for split in found.extremes() if tried else ():
            sweep = Sweep(tried, local.route.crossed(split, network))
            yield _swept(replace(local.plan, split=split), _ABSTAINS, sweep, None, power)

    def _remote(self, plan: Plan, network: Network | None, power: Power | None) -> Iterator[Family]:
        """The server's model answers everything, or everything that it is sure of; the subnet is the fallback."""
        route = Route.to_end(self._supernet, plan, self._evidence, self._costs, network)
        yield Family(plan.kind, Costs.of(route.cost(power)), _always(plan))
        if self._remote_rankings is None:
            self._remote_rankings = _rankings(route, UNFITTED)
        yield _swept(plan, _ABSTAINS, Sweep(self._remote_rankings, route), None, power)

    def _splits(self, subnet: Subnet, network: Network | None) -> Iterator[Split]:
        """The ways to let a server run the rest of ``subnet``."""
        if self._tail_server is None or network is None or network.server is None:
            return
        known = network.server.edge_costs
        for number, (edge, block) in reversed(list(enumerate(self._supernet.walk(subnet)))):
            cut = self._supernet.cut_points[block.start]
            if edge not in known:
                return
            if can_travel(cut) and (block.start > 0 or self._sends_input):
                bits = (BITS,) * len(cut.tensors)
                yield Split(block.start, bits, subnet.edges[number:], self._tail_server)

    def _crossings(self, route: Route, network: Network | None) -> Iterator[Crossing]:
        """The splits of the route's subnet in 8 bits, and in fewer bits where their logits are known."""
        few: dict[int, list[tuple[tuple[int, ...], Array]]] = {}
        for (subnet, position, bits), logits in self._evidence.received.items():
            if subnet == route.subnet:
                few.setdefault(position, []).append((bits, logits))
        for split in self._splits(route.subnet, network):
            yield Crossing.of(route, split, network)
            for bits, logits in few.get(split.position, ()):
                right = self._evidence.right(logits)
                yield Crossing.of(route, replace(split, bits=bits), network, right)


def _rankings(route: Route, deciders: Sequence[Decider]) -> list[Ranking]:
    return [ranking for decider in deciders if (ranking := Ranking.of(route, decider)) is not None]


def _swept(plan: Plan, policy: Abstain | Ask, sweep: Sweep, asking: Asking | None, power: Power | None) -> Family:
    def at(number: int) -> Plan:
        return replace(plan, hard=replace(policy, decider=sweep.decider(number)))

    return Family(replace(plan, hard=policy).kind, sweep.costs(asking, power), at)


def _always(plan: Plan) -> Callable[[int], Plan]:
    return lambda number: plan
