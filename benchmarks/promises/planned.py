"""Limits that the planner keeps: accuracies, drops, exits, exits with asking, budgets of cascades."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from benchmarks.promises.kinds import CERTAINTY, REFUSED, Kind, Places, Tried
from benchmarks.promises.world import FULL_MS, NETWORK, SERVER, World, best_alone
from device_sdk.data.datasets import split_positions
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.policies.costs.evidence import Evidence
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.planning.planner import Planner, PromisedPlans, Trial
from device_sdk.supernet.cost import PlanCost
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Plan, Subnet
from device_sdk.tasks.margins import margin_scale

PLANS_ACCURACY, ASKING_ACCURACY, DROP = 0.88, 0.91, 0.03
BUDGET_RATIOS = (0.36, 0.45, 0.65)  # of the last network's latency
_FEW = 180  # photographs, as a device has them
_HELD_OUT = 0.3


class _Drawn:
    """The samples of one draw, divided as ``adapt`` divides them: those that choose, and those that test."""

    def __init__(
        self, world: World, chosen: Places, judged: Places, kinds: Collection[str], drop: float | None
    ) -> None:
        self.world, self.supernet, self.costs = world, world.supernet(), world.costs()
        kept, held = split_positions(world.labels[chosen], holdout_share=_HELD_OUT, seed=0)
        self.seen, self._held, self.new = (world.evidence(one) for one in (chosen[kept], chosen[held], judged))
        self._kinds, self._drop = kinds, drop

    def plans(self, subnets: list[Subnet]) -> PromisedPlans:
        """The planner with promises."""
        drops = () if self._drop is None else (self._drop,)
        exits = "exits" in self._kinds
        planner = Planner(
            self.supernet,
            self.counted(),
            self.costs,
            subnets,
            exit_sets={self.world.full: self.world.exit_sets(self.seen, drops)} if exits else None,
            exits={self.world.full: self.world.exits} if exits else None,
            servers=[SERVER] if "ask" in self._kinds else [],
            kinds=self._kinds,
            certainty=CERTAINTY,
        )
        drop_from = None if self._drop is None else (self.world.full, self._drop)
        seen, held = (Trial(self.supernet, one, self.costs, drop_from) for one in (self.seen, self._held))
        return PromisedPlans(planner, seen, held)

    def counted(self) -> Evidence:
        """Answers count by their margin where cascades compete, as in ``collect``."""
        if "cascade" not in self._kinds:
            return self.seen
        margins = self.seen.margins(self.seen.ends[self.world.full])
        return replace(self.seen, margin_scale=margin_scale(margins, self.seen.count))

    def accuracy(self, evidence: Evidence) -> float:
        """The last network's."""
        return float(evidence.credit(evidence.ends[self.world.full]).mean())

    def cost(self, plan: Plan) -> PlanCost:
        """On new samples."""
        return expected_cost(self.supernet, plan, self.new, self.costs, NETWORK)


def accuracy_kind(name: str, world: World, kinds: Collection[str], least: float) -> Kind:
    """The quickest plan of an accuracy; saved is a share of the last network's latency."""

    def tried(chosen: Places, judged: Places) -> Tried:
        drawn = _Drawn(world, chosen, judged, kinds, None)
        wanted = Requirement(optimise="latency_ms", accuracy=least, certainty=CERTAINTY, coverage=1.0)
        subnets = [world.full] if "exits" in kinds else world.subnets
        try:
            plan = drawn.plans(subnets).best(wanted, NETWORK).plan
        except InfeasibleBudgetError:
            return REFUSED
        cost = drawn.cost(plan)
        return Tried((cost.accuracy or 0.0) >= least, 1 - (cost.latency_ms or 0.0) / FULL_MS)

    return Kind(name, tried)


def drop_kind(name: str, world: World, kinds: Collection[str]) -> Kind:
    """The quickest plan within a drop from the last network's accuracy; saved is a share of its latency."""

    def tried(chosen: Places, judged: Places) -> Tried:
        drawn = _Drawn(world, chosen, judged, kinds, DROP)
        subnets = [world.full] if "exits" in kinds else world.subnets
        plans = drawn.plans(subnets)
        least = drawn.accuracy(drawn.counted()) - DROP
        wanted = Requirement(optimise="latency_ms", accuracy=least, certainty=CERTAINTY, coverage=1.0)
        try:
            plan = plans.best(wanted, NETWORK).plan
        except InfeasibleBudgetError:
            return REFUSED
        cost = drawn.cost(plan)
        return Tried(drawn.accuracy(drawn.new) - (cost.accuracy or 0.0) <= DROP, 1 - (cost.latency_ms or 0.0) / FULL_MS)

    return Kind(name, tried)


def cascade_kind(world: World, ratio: float) -> Kind:
    """The most accurate plan within a mean latency; saved is accuracy over the best network alone, in hindsight."""
    limit_ms = ratio * FULL_MS

    def tried(chosen: Places, judged: Places) -> Tried:
        drawn = _Drawn(world, chosen, judged, ("subnets", "cascade"), None)
        wanted = Requirement(latency_ms=limit_ms, certainty=CERTAINTY, coverage=1.0)
        cost = drawn.cost(drawn.plans(world.subnets).best(wanted).plan)
        gained = (cost.accuracy or 0.0) - best_alone(world, drawn.new, limit_ms)
        return Tried((cost.latency_ms or 0.0) <= limit_ms, gained)

    return Kind(f"cascade_{round(100 * ratio)}", tried, chosen_on=_FEW)


def planned_kinds(world: World) -> list[Kind]:
    """All of them."""
    return [
        accuracy_kind("plans", world, ("subnets", "cascade"), PLANS_ACCURACY),
        accuracy_kind("ee_hi", world, ("exits", "ask"), ASKING_ACCURACY),
        drop_kind("drop", world, ("subnets", "cascade")),
        drop_kind("exits", world, ("exits",)),
        *(cascade_kind(world, ratio) for ratio in BUDGET_RATIOS),
    ]
