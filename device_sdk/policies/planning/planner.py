"""The judge of all proposed plans: the best one for a requirement.

Exhaustive: plans that differ in a threshold alone are judged together in closed form (``threshold_sweep``), all others
one by one. Exits with asking are optimised together too (``joint_thresholds``). The plan that wins is judged again by
``expected_cost``. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from device_sdk.offload.remote_model import Privacy
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost, whole_route
from device_sdk.policies.costs.route import Route
from device_sdk.policies.joint_thresholds.plans import JointPlans
from device_sdk.policies.planning.choice import Choice, Option
from device_sdk.policies.planning.families import Families, Family
from device_sdk.policies.planning.ground import Ground
from device_sdk.policies.planning.proposers import PROPOSERS
from device_sdk.supernet.cost import CostModel, Power
from device_sdk.supernet.plan import ExitChoice, Plan, RemoteRef, Subnet
from device_sdk.supernet.requirement import Requirement
from device_sdk.supernet.supernet import Supernet

_NEED_NO_SERVER = ("subnets", "abstain")


class Planner:
    """Chooses among all plans that ``evidence`` can judge.

    Args:
        subnets: those that the device may run; the evidence has their logits.
        exit_sets: exits with thresholds, calibrated for a subnet; each set is tried with everything else.
        exits: of each subnet those whose thresholds are optimised together with that of asking.
        server: the server's model that may be asked, None for none.
        tail_server: the server's model that runs tails, None for none.
        privacy: limit of what may be sent: plans that send more are left out.
        kinds: whose proposers are heard, by default all; plans that answer everything here always are.
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
        kinds: Collection[str] | None = None,
    ) -> None:
        self._supernet, self._evidence, self._costs = supernet, evidence, cost_model
        self._kinds = frozenset(["subnets", *(PROPOSERS if kinds is None else kinds)])
        asks = privacy == "inputs" and "ask" in self._kinds
        self._ground = Ground(
            supernet,
            evidence,
            cost_model,
            subnets,
            exit_sets=exit_sets or {},
            server=server if asks else None,
            tail_server=tail_server if privacy != "never" else None,
            sends_input=privacy == "inputs",
        )
        self._last: tuple[Network | None, Power | None, Families] | None = None
        self._here: dict[Power | None, list[Family]] = {}
        self._joint = self._joint_plans(exits or {})

    def _joint_plans(self, exits: Mapping[Subnet, Sequence[ExitChoice]]) -> JointPlans | None:
        server = self._ground.server
        if server is None:
            return None
        rankings = {local.plan.subnet: local.asking for local in self._ground.without_exits}
        return JointPlans(self._supernet, self._evidence, self._costs, exits, rankings, server)

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
            if power not in self._here:
                self._here[power] = self._proposed(_NEED_NO_SERVER, None, power)
            others = [kind for kind in PROPOSERS if kind not in _NEED_NO_SERVER]
            found = [*self._here[power], *self._proposed(others, network, power)]
            self._last = network, power, Families(found)
        return self._last[2]

    def _proposed(self, kinds: Sequence[str], network: Network | None, power: Power | None) -> list[Family]:
        heard = [PROPOSERS[kind] for kind in kinds if kind in self._kinds]
        return [family for propose in heard for family in propose(self._ground, network, power, self._kinds)]

    def _option(self, plan: Plan, requirement: Requirement, network: Network | None, power: Power | None) -> Option:
        cost = expected_cost(self._supernet, plan, self._evidence, self._costs, network, power)
        return Option(plan, cost, requirement.misses(cost))
