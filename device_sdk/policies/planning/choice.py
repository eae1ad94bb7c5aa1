"""Choices of a planner, and the families of plans that it chooses from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.policies.costs.route import Asking
from device_sdk.policies.costs.threshold_sweep import Costs, Sweep
from device_sdk.policies.deciding.promises import Promise
from device_sdk.policies.exits.placed_exits import without_timed_exits
from device_sdk.supernet.cost import PlanCost, Power
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Abstain, Ask, Cascade, Plan

_SPARED = ("latency_ms", "energy_mj", "bytes_sent")


@dataclass(frozen=True)
class Option:
    """A plan, its expected cost, and the limits of the requirement that it breaks, each with the plan's value."""

    plan: Plan
    cost: PlanCost
    misses: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """The plan that a requirement puts first; ``misses``: the limits that it breaks, with its values.

    ``by_kind``: the best of each kind of plan, or of a kind that breaks limits always the nearest to keeping them;
    ``considered``: number of plans judged; ``promise``: of the accuracy, where the requirement states a certainty.
    ``late``: where the plan asks from exits, the best one that does not.
    """

    plan: Plan
    cost: PlanCost
    by_kind: Mapping[str, Option]
    considered: int
    misses: Mapping[str, float] = field(default_factory=dict)
    promise: Promise | None = None
    late: Option | None = None

    @property
    def kind(self) -> str:
        """The plan's kind; exits for deadlines and interruptions alone make none."""
        return without_timed_exits(self.plan).kind

    @property
    def saved_by_asking_early(self) -> dict[str, float]:
        """Savings per sample by asking from exits, against the best plan that asks only at its end, by cost name."""
        if self.late is None:
            return {}
        pairs = {name: (getattr(self.late.cost, name), getattr(self.cost, name)) for name in _SPARED}
        return {name: late - early for name, (late, early) in pairs.items() if late is not None and early is not None}

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
            f"no plan keeps the requirement; the nearest ({self.kind}) has {missed}",
            nearest=self.plan.subnet.block_ids,
            nearest_latency_ms=math.inf if latency_ms is None else latency_ms,
            nearest_peak_bytes=self.cost.peak_bytes,
            hint="relax what it misses",
        )


Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """Plans of one kind that differ in one threshold or in their split, or a single plan."""

    kind: str
    costs: Costs
    plan: Callable[[int], Plan]


def swept(
    plan: Plan,
    policy: Abstain | Ask | Cascade,
    sweep: Sweep,
    asking: Asking | None,
    power: Power | None,
    certainty: float | None = None,
) -> Family:
    """``plan`` with ``policy`` at its end, at every threshold of ``sweep``. ``certainty``: as ``Sweep.costs``."""

    def at(number: int) -> Plan:
        return replace(plan, hard=replace(policy, decider=sweep.decider(number)))

    return Family(replace(plan, hard=policy).kind, sweep.costs(asking, power, certainty), at)


def always(plan: Plan) -> Callable[[int], Plan]:
    """The ``plan`` of a family of one."""
    return lambda number: plan


class Families:
    """All plans of all families in columns: what every requirement on one network is judged by."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families
        sizes = [len(family.costs.accuracy) for family in families]
        self._starts = np.append(0, np.cumsum(sizes))
        self.kinds = sorted({family.kind for family in families})
        kinds = np.repeat([self.kinds.index(family.kind) for family in families], sizes)
        self._of_kind = {kind: np.flatnonzero(kinds == number) for number, kind in enumerate(self.kinds)}
        self._columns: dict[str, Column] = {}

    @property
    def count(self) -> int:
        """The number of plans."""
        return int(self._starts[-1])

    def best(self, requirement: Requirement) -> dict[str, Plan]:
        """The best plan of each kind, and under an empty name of all."""
        excess, value = self._excess(requirement), self.column(requirement.optimise)
        loss = np.nan_to_num(-value if requirement.optimise == "accuracy" else value, nan=math.inf)
        latency_ms = np.nan_to_num(self.column("latency_ms"), nan=math.inf)
        first = {kind: _first(places, excess, loss, latency_ms) for kind, places in self._of_kind.items()}
        best = _first(np.sort(list(first.values())), excess, loss, latency_ms)
        return {"": self._plan(best), **{kind: self._plan(place) for kind, place in first.items()}}

    def column(self, name: str) -> Column:
        """The costs of this name."""
        if name not in self._columns:
            self._columns[name] = np.concatenate([getattr(family.costs, name) for family in self._families])
        return self._columns[name]

    def _excess(self, requirement: Requirement) -> Column:
        """By how much each plan breaks the limits, as the sum of relative distances."""
        excess = np.zeros(self.count)
        for name, limit, is_least in requirement.limits:
            values = self.column(name)
            broken = np.flatnonzero(~(values >= limit if is_least else values <= limit))
            distance = np.abs(values[broken] - limit) / limit if limit else values[broken]
            excess[broken] += np.where(np.isnan(distance), math.inf, distance)
        return excess

    def _plan(self, place: int) -> Plan:
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self._families[number].plan(place - int(self._starts[number]))


def _first(places: npt.NDArray[np.int64], *keys: Column) -> int:
    """The place with the least first key, of equal ones the least second, and so on."""
    for key in keys:
        values = key[places]
        places = places[values == values.min()]
    return int(places[0])
