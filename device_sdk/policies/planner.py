"""One planner over subnets, exits, deciders, abstention, asking a server and splits: the best plan for a requirement.

Exhaustive: plans that differ in a threshold alone are judged together in closed form (``threshold_sweep``), all others
one by one. Exits with asking are optimised together too (``joint_plans``). The plan that wins is judged again by
``expected_cost``. Pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from device_sdk.errors import InfeasibleBudgetError, UsageError
from device_sdk.offload.packing import BITS, can_travel
from device_sdk.offload.remote_model import Privacy
from device_sdk.policies.decider_fitting import TOP_TWO, Viewed, fit_best_logistic, fit_logistic
from device_sdk.policies.evidence import Evidence, Network
from device_sdk.policies.expected_cost import expected_cost, whole_route
from device_sdk.policies.joint_plans import JointPlans
from device_sdk.policies.plan_families import Family, Judged
from device_sdk.policies.promises import Promise
from device_sdk.policies.route import Asking, Route
from device_sdk.policies.router_fitting import fit_router_if_better
from device_sdk.policies.split_sweep import sweep_splits
from device_sdk.policies.threshold_sweep import Costs, Ranking
from device_sdk.policies.timed_exits import without_timed_exits
from device_sdk.supernet.cost import CostModel, PlanCost, Power
from device_sdk.supernet.plan import (
    Abstain,
    Ask,
    Decider,
    Entropy,
    ExitChoice,
    Margin,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
    Subnet,
)
from device_sdk.supernet.requirement import Requirement
from device_sdk.supernet.supernet import Supernet

_ROUTER_SAMPLES = 300  # below, a router has nothing to learn from
_UNFITTED: tuple[Decider, ...] = (MaxConfidence(0.0), Entropy(0.0), Margin(0.0))


@dataclass(frozen=True)
class Option:
    """A plan, its expected cost, and the limits of the requirement that it breaks, with what it has."""

    plan: Plan
    cost: PlanCost
    misses: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """The plan that a requirement puts first; ``misses``: the limits that it breaks all the same, with what it has.

    ``by_kind``: the best of each kind of plan, or of a kind that breaks limits always the nearest to keeping them;
    ``considered``: how many plans were judged; ``promise``: of the accuracy, where the requirement states a certainty.
    """

    plan: Plan
    cost: PlanCost
    by_kind: Mapping[str, Option]
    considered: int
    misses: Mapping[str, float] = field(default_factory=dict)
    promise: Promise | None = None

    @property
    def kind(self) -> str:
        """The plan's kind; exits for deadlines and interruptions alone make none."""
        return without_timed_exits(self.plan).kind

    def required(self) -> Choice:
        """The same choice.

        Raises:
            InfeasibleBudgetError: its plan breaks a limit; names what it misses.
        """
        if not self.misses:
            return self
        missed = ", ".join(f"{name} {value:.4g}" for name, value in self.misses.items())
        latency_ms = self.cost.latency_ms
        raise InfeasibleBudgetError(
            f"no plan keeps the requirement; the nearest ({self.plan.kind}) has {missed}",
            nearest=self.plan.subnet.block_ids,
            nearest_latency_ms=math.inf if latency_ms is None else latency_ms,
            nearest_peak_bytes=self.cost.peak_bytes,
            hint="relax what it misses",
        )


@dataclass(frozen=True)
class _Local:
    """A plan that runs here, the way of the samples through it, and all thresholds of its deciders."""

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
        privacy: what may be sent: plans that send more are left out.
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
        self._last: tuple[Network | None, Power | None, list[Family]] | None = None
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
        judged = Judged(families, requirement)
        kinds = sorted({family.kind for family in families})
        by_kind = {kind: self._option(judged.best(kind), requirement, network, power) for kind in kinds}
        best = self._option(judged.best(), requirement, network, power)
        joint = self._joint_option(best, requirement, network, power)
        if joint is not None:
            best = by_kind[joint.plan.kind] = joint
        return Choice(best.plan, best.cost, by_kind, judged.count, best.misses)

    def route(self, plan: Plan, network: Network | None) -> Route:
        """The way of the samples that the planner knows through ``plan``. Raises as ``expected_cost``."""
        return whole_route(self._supernet, plan, self._evidence, self._costs, network)

    def _joint_option(
        self, best: Option, requirement: Requirement, network: Network | None, power: Power | None
    ) -> Option | None:
        """Exits and asking optimised together, where that keeps the requirement and is better than ``best``."""
        value = -math.inf if best.misses else requirement.value(best.cost)
        plan = None if self._joint is None else self._joint.best(requirement, network, power, better_than=value)
        found = None if plan is None else self._option(plan, requirement, network, power)
        return None if found is None or found.misses else found

    def _known_families(self, network: Network | None, power: Power | None) -> list[Family]:
        """All families, kept for further requirements on the same network."""
        if self._last is None or self._last[:2] != (network, power):
            self._last = network, power, list(self._families(network, power))
        return self._last[2]

    def _option(self, plan: Plan, requirement: Requirement, network: Network | None, power: Power | None) -> Option:
        cost = expected_cost(self._supernet, plan, self._evidence, self._costs, network, power)
        return Option(plan, cost, requirement.misses(cost))

    def _known_deciders(self, subnet: Subnet, server: RemoteRef | None) -> list[Decider]:
        if (subnet, server) not in self._fitted:
            self._fitted[subnet, server] = self._deciders(subnet, server)
        return self._fitted[subnet, server]

    def _deciders(self, subnet: Subnet, server: RemoteRef | None) -> list[Decider]:
        """Those of a fixed score, and those fitted to the subnet's logits: to gain where a server can be asked."""
        logits = self._evidence.ends[subnet]
        views = self._evidence.views.get(subnet)
        gains_nothing = np.zeros(len(logits), dtype=bool)
        if server is not None and server in self._evidence.servers:
            gains_nothing = ~self._evidence.right(self._evidence.servers[server])
        easy = self._evidence.right(logits) | gains_nothing
        viewed = None if views is None else Viewed(views, self._evidence.right(views) | gains_nothing)
        best = fit_best_logistic(logits, easy, views=viewed)
        logistic = None if best is None else best.decider
        fitted: list[Decider | None] = [fit_logistic(logits, easy, features=TOP_TWO, by_class=False), logistic]
        if server is not None and logistic is not None and len(logits) >= _ROUTER_SAMPLES:
            fitted.append(fit_router_if_better(logits, easy, logistic))
        return [*_UNFITTED, *(decider for decider in fitted if decider is not None)]

    def _families(self, network: Network | None, power: Power | None) -> Iterator[Family]:
        for local in self._local:
            plan = local.plan
            yield Family(plan.kind, Costs.of(local.route.cost(power)), _always(plan))
            for ranking in local.abstaining:
                yield _swept(plan, Abstain(ranking.kind), ranking, None, power)
            for ranking in local.asking:
                assert self._server is not None
                ask = Ask(ranking.kind, self._server)
                yield _swept(plan, ask, ranking, local.route.asking(ask, network), power)
            yield from self._crossing(local, network, power)

    def _crossing(self, local: _Local, network: Network | None, power: Power | None) -> Iterator[Family]:
        """Plans that cross to a server: all of the plan's own splits, and what abstains behind the best of them."""
        found = list(self._splits(local.plan, network))
        for splits in ([one for one in found if not one.position], [one for one in found if one.position]):
            if splits:
                yield from self._crossing_at(local, splits, network, power)
        if self._server in self._evidence.servers and not local.plan.exits and not local.plan.input_size:
            assert self._server is not None
            yield from self._remote(replace(local.plan, split=Split(0, (), (), self._server)), network, power)

    def _crossing_at(
        self, local: _Local, splits: Sequence[Split], network: Network | None, power: Power | None
    ) -> Iterator[Family]:
        crossings = sweep_splits(local.route, splits, network, power)
        plans = [replace(local.plan, split=split) for split in splits]
        yield Family(plans[0].kind, crossings.costs, plans.__getitem__)
        for split in crossings.extremes():
            plan, route = replace(local.plan, split=split), local.route.crossed(split, network)
            for ranking in (*local.abstaining[:1], *local.abstaining[-1:]):
                yield _swept(plan, Abstain(ranking.kind), dataclasses.replace(ranking, route=route), None, power)

    def _remote(self, plan: Plan, network: Network | None, power: Power | None) -> Iterator[Family]:
        """The server's model answers everything, or everything that it is sure of; the subnet is the fallback."""
        route = Route.to_end(self._supernet, plan, self._evidence, self._costs, network)
        yield Family(plan.kind, Costs.of(route.cost(power)), _always(plan))
        for ranking in _rankings(route, _UNFITTED):
            yield _swept(plan, Abstain(ranking.kind), ranking, None, power)

    def _splits(self, plan: Plan, network: Network | None) -> Iterator[Split]:
        """The ways to let a server run the rest of the plan's own subnet."""
        if self._tail_server is None or network is None or network.server is None:
            return
        supernet = self._supernet
        last = max((supernet.exit(choice.exit).position for choice in plan.exits), default=0)
        for edge, block in supernet.walk(plan.subnet):
            tail = plan.subnet.edges[plan.subnet.edges.index(edge) :]
            cut = supernet.cut_points[block.start]
            is_allowed = block.start >= last and can_travel(cut) and (block.start > 0 or self._sends_input)
            if is_allowed and all(one in network.server.edge_costs for one in tail):
                bits = (BITS,) * len(cut.tensors)
                yield Split(block.start, bits, tail, self._tail_server)


def _rankings(route: Route, deciders: Sequence[Decider]) -> list[Ranking]:
    return [ranking for decider in deciders if (ranking := Ranking.of(route, decider)) is not None]


def _swept(plan: Plan, policy: Abstain | Ask, ranking: Ranking, asking: Asking | None, power: Power | None) -> Family:
    def at(number: int) -> Plan:
        return replace(plan, hard=replace(policy, decider=ranking.decider(number)))

    return Family(replace(plan, hard=policy).kind, ranking.costs(asking, power), at)


def _always(plan: Plan) -> Callable[[int], Plan]:
    return lambda number: plan
