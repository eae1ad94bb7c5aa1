"""Choice of a planner: the plan that a requirement puts first, and the best alternatives. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.policies.deciding.promises import Promise
from device_sdk.policies.exits.timed_exits import without_timed_exits
from device_sdk.supernet.cost import PlanCost
from device_sdk.supernet.plan import Plan

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
