"""The judge of all proposed plans: the best one for a requirement, and one whose accuracy is promised."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec.structs import replace as changed

from device_sdk.offload.remote_model import Privacy
from device_sdk.policies.costs.evidence import Evidence, Network
from device_sdk.policies.costs.expected_cost import expected_cost, whole_route
from device_sdk.policies.costs.route import Route
from device_sdk.policies.deciding.promises import SHARES_CERTAINTY, Promise, is_certain_gain
from device_sdk.policies.exits.placed_exits import without_timed_exits
from device_sdk.policies.joint_thresholds.plans import JointPlans
from device_sdk.policies.planning.choice import Choice, Families, Family, Option
from device_sdk.policies.planning.ground import Fitted, Ground
from device_sdk.policies.planning.proposers import PROPOSERS, that_need
from device_sdk.supernet.cost import CostModel, Power
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import ExitChoice, Plan, RemoteRef, Subnet
from device_sdk.supernet.supernet import Supernet


class Planner:
    """Chooses among all plans that ``evidence`` can judge.

    Args:
        subnets: those that the device may run; the evidence has their logits.
        exit_sets: exits with thresholds, calibrated for a subnet; each set is tried with everything else.
        exits: of each subnet those whose thresholds are optimised together with that of asking.
        servers: the servers' models that may be asked.
        tail_server: the server's model that runs tails, None for none.
        privacy: limit of what may be sent: plans that send more are left out.
        kinds: whose proposers are heard, by default all; plans that answer everything here always are.
        certainty: of the latencies of cascades on new samples.
        fitted: as ``Ground`` takes it.
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
        servers: Sequence[RemoteRef] = (),
        tail_server: RemoteRef | None = None,
        privacy: Privacy = "inputs",
        kinds: Collection[str] | None = None,
        certainty: float = SHARES_CERTAINTY,
        fitted: Fitted | None = None,
    ) -> None:
        self._supernet, self._evidence, self._costs = supernet, evidence, cost_model
        self._kinds = frozenset(["subnets", *(PROPOSERS if kinds is None else kinds)])
        asks = privacy == "inputs" and bool(self._kinds.intersection(that_need("answers")))
        self._ground = Ground(
            supernet,
            evidence,
            cost_model,
            subnets,
            exit_sets=exit_sets or {},
            servers=servers if asks else (),
            tail_server=tail_server if privacy != "never" else None,
            sends_input=privacy == "inputs",
            certainty=certainty,
            fitted=fitted,
        )
        self._last: tuple[Network | None, Power | None, Families] | None = None
        self._here: dict[Power | None, list[Family]] = {}
        self._joint = self._joint_plans(exits or {})

    @property
    def useless(self) -> tuple[RemoteRef, ...]:
        """The servers whose answers gain nothing, which no hard sample is sent to at the end of a path."""
        return self._ground.useless

    def _joint_plans(self, exits: Mapping[Subnet, Sequence[ExitChoice]]) -> list[JointPlans]:
        """For each server."""
        found = []
        for server in self._ground.servers:
            rankings = {local.plan.subnet: local.asking[server] for local in self._ground.without_exits}
            found.append(JointPlans(self._supernet, self._evidence, self._costs, exits, rankings, server))
        return found

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
        by_kind = {kind: self.judged(plans[kind], requirement, network, power) for kind in families.kinds}
        best = next(one for one in by_kind.values() if one.plan == plans[""])
        if best.plan.second is not None and requirement.optimise == "accuracy":
            best = self._certain(best, by_kind.values(), requirement, network)
        late = None
        searches = [one.search(requirement, network, power) for one in self._joint]
        for asks_early in (False, True):
            before = best
            for search in searches:
                value = -math.inf if best.misses else requirement.value(best.cost)
                plan = search.best(better_than=value, asks_early=asks_early)
                joint = None if plan is None else self.judged(plan, requirement, network, power)
                if joint is not None and not joint.misses:
                    late = before if joint.plan.asks_early else None
                    best = by_kind[joint.plan.kind] = joint
        return Choice(best.plan, best.cost, by_kind, families.count, best.misses, late=late)

    def _certain(
        self, cascade: Option, options: Collection[Option], requirement: Requirement, network: Network | None
    ) -> Option:
        """``cascade``, or the best plan without a second path where it does not surely gain on that."""
        rivals = [one for one in options if one.plan.second is None and one.cost.coverage == 1 and not one.misses]
        rival = max(rivals, key=lambda one: requirement.value(one.cost), default=cascade)
        return cascade if self.surely_gains(cascade.plan, rival.plan, network) else rival

    def surely_gains(self, plan: Plan, rival: Plan, network: Network | None) -> bool:
        """True unless ``plan`` has a second path and is not more accurate than ``rival`` by a standard error.

        Cascades are chosen among so many that the best one by a hair is the luckiest. Both plans answer all samples.
        """
        if plan.second is None:
            return True
        gains = np.subtract(*(self.route(one, network).correct.astype(float) for one in (plan, rival)))
        return is_certain_gain(gains)

    def route(self, plan: Plan, network: Network | None) -> Route:
        """The route of the planner's samples through ``plan``. Raises as ``expected_cost``."""
        return whole_route(self._supernet, plan, self._evidence, self._costs, network)

    def _known_families(self, network: Network | None, power: Power | None) -> Families:
        """All families, kept for further requirements on the same network."""
        if self._last is None or self._last[:2] != (network, power):
            if power not in self._here:
                self._here[power] = self._proposed(that_need(None), None, power)
            others = [*that_need("answers"), *that_need("tails")]
            found = [*self._here[power], *self._proposed(others, network, power)]
            self._last = network, power, Families(found)
        return self._last[2]

    def _proposed(self, kinds: Sequence[str], network: Network | None, power: Power | None) -> list[Family]:
        heard = [PROPOSERS[kind] for kind in kinds if kind in self._kinds]
        return [family for one in heard for family in one.propose(self._ground, network, power, self._kinds)]

    def judged(self, plan: Plan, requirement: Requirement, network: Network | None, power: Power | None) -> Option:
        """``plan`` with its expected cost. Raises as ``expected_cost``."""
        cost = expected_cost(self._supernet, plan, self._evidence, self._costs, network, power)
        return Option(plan, cost, requirement.misses(cost))


_STEPS = 16  # accuracies between the highest possible and the promised one


@dataclass(frozen=True)
class Trial:
    """Samples that plans are tried on. ``drop_from``: a subnet, and the accuracy that plans may lose against it.

    The evidence counts answers as right or wrong.
    """

    supernet: Supernet
    evidence: Evidence
    costs: CostModel
    drop_from: tuple[Subnet, float] | None = None

    def least(self, accuracy: float) -> float:
        """The share of answers that must not be ``Promise.wrong``, for an accuracy or for the drop."""
        return accuracy if self.drop_from is None else 1 - self.drop_from[1]

    def is_reference(self, plan: Plan) -> bool:
        """True if ``plan`` is what a drop is measured from, which needs no test."""
        return self.drop_from is not None and without_timed_exits(plan).with_prior(None) == Plan(self.drop_from[0])

    def promise(self, plan: Plan, certainty: float) -> Promise:
        """The evidence for an accuracy of ``plan``, or for its drop: none where a server's answers are unknown."""
        if not self.evidence.count:
            return Promise(certainty, 0, 0)
        route = whole_route(self.supernet, plan, self.evidence, self.costs)
        if not route.accuracy_known:
            return Promise(certainty, 0, 0)
        answered, right, won = route.answered, route.correct.astype(bool), None
        wrong = answered & ~right
        if self.drop_from is not None:
            reference = self.evidence.right(self.evidence.ends[self.drop_from[0]])
            won = int(np.count_nonzero(answered & right & ~reference))
            wrong &= reference
        return Promise(certainty, int(np.count_nonzero(answered)), int(np.count_nonzero(wrong)), won)


@dataclass(frozen=True)
class PromisedPlans:
    """A planner that also keeps promises.

    ``seen``: the samples that choose; ``held``: those that test, without any nothing can be promised. ``finished``:
    what is made of each plan that is chosen; no sample may be answered otherwise by it.
    """

    planner: Planner
    seen: Trial
    held: Trial
    finished: Callable[[Plan, Requirement], Plan] = lambda plan, requirement: plan

    def best(self, requirement: Requirement, network: Network | None = None, power: Power | None = None) -> Choice:
        """The best plan under the requirement's limits. Raises InfeasibleBudgetError, as ``Planner.best``."""
        return self.nearest(requirement, network, power).required()

    def nearest(self, requirement: Requirement, network: Network | None = None, power: Power | None = None) -> Choice:
        """The best plan, or the one that comes nearest to the requirement, with its promise."""
        choice = self._nearest(requirement, network, power)
        return replace(choice, plan=self.finished(choice.plan, requirement))

    def _nearest(self, requirement: Requirement, network: Network | None, power: Power | None) -> Choice:
        """The best plan of those that pass in turn, most likely first, up to the first that fails.

        Since the order was fixed before, the probability of passing wrongly is that of one test, however many pass
        (fixed sequences; Laufer-Goldshtein et al. 2023, "Efficiently controlling multiple risks with Pareto testing").
        """
        accuracy, certainty = requirement.accuracy, requirement.certainty
        if certainty is None or accuracy is None:
            return self.planner.nearest(requirement, network, power)
        kept: list[Choice] = []
        least, choices = self.held.least(accuracy), self._sequence(requirement, network, power)
        for choice in choices:
            promise = self.held.promise(choice.plan, certainty)
            if choice.misses or not (promise.holds(least) or self.held.is_reference(choice.plan)):
                break
            kept.append(replace(choice, promise=promise))
        if kept:
            return max(kept, key=lambda one: requirement.value(one.cost))
        promise = self.held.promise(choices[0].plan, certainty)
        misses = dict(choices[0].misses)
        if not promise.holds(least):
            unsure = promise.least_accuracy
            misses |= {"accuracy": unsure} if self.held.drop_from is None else {"max_drop": 1 - unsure}
        return replace(choices[0], misses=misses, promise=promise)

    def _sequence(self, requirement: Requirement, network: Network | None, power: Power | None) -> list[Choice]:
        """Plans by how sure they are to pass, as far as the samples that choose tell; at least one."""
        accuracy, certainty = requirement.accuracy, requirement.certainty
        assert accuracy is not None
        assert certainty is not None
        nearest = self.planner.nearest(requirement, network, power)
        highest = self.planner.nearest(changed(requirement, optimise="accuracy"), network, power)
        found = {choice.plan: choice for choice in (nearest, highest)}
        if self.seen.drop_from is not None:
            own = self.planner.judged(Plan(self.seen.drop_from[0]), requirement, network, power)
            found.setdefault(own.plan, replace(nearest, plan=own.plan, cost=own.cost, late=None))
        for target in np.linspace(accuracy, highest.cost.accuracy or accuracy, _STEPS)[1:].tolist():
            stricter = changed(requirement, accuracy=min(target, 1.0), certainty=None)
            choice = self.planner.nearest(stricter, network, power)
            found.setdefault(choice.plan, choice)
        least, count = self.seen.least(accuracy), self.held.evidence.count

        def doubt(choice: Choice) -> float:
            seen = self.seen.promise(choice.plan, certainty)
            share = count / self.seen.evidence.count
            answered, wrong = round(share * seen.samples), round(share * seen.wrong)
            won = None if seen.won is None else min(round(share * seen.won), answered - wrong)
            return Promise(certainty, answered, wrong, won).doubt(least)

        fitting = [
            replace(one, misses={}, by_kind=nearest.by_kind)
            for one in found.values()
            if not requirement.misses(one.cost)
        ]
        return sorted(fitting, key=lambda one: (not self.seen.is_reference(one.plan), doubt(one))) or [nearest]
