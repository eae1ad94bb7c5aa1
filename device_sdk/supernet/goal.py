"""Goals of a plan: one quantity to optimise, limits on the others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from device_sdk.errors import BudgetError, InfeasibleBudgetError
from device_sdk.supernet.cost import MB, Budget, PlanCost
from device_sdk.supernet.plan import Plan

Optimised = Literal["accuracy", "latency_ms", "energy_mj", "bytes_sent"]

_AT_LEAST = ("accuracy", "coverage")
_AT_MOST = ("latency_ms", "p95_latency_ms", "energy_mj", "bytes_sent", "peak_bytes", "share_asked")
_MAY_BE_NOTHING = ("bytes_sent", "share_asked")


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """Optimise one quantity under limits on others: ``accuracy`` and ``coverage`` from below, the rest from above.

    Without ``coverage`` a plan may abstain from any share of the samples: its accuracy is that of those it answers.
    ``certainty``: the probability, over the draw of the private samples, with which the accuracy holds on new samples
    like them, and the latency of a cascade, between 0 and 1; None: the accuracy holds on the samples that the plan was
    chosen on, and the latency of a cascade with 0.9.

    Raises:
        BudgetError: nothing is limited, or a limit makes no sense.
    """

    optimise: Optimised = "accuracy"
    accuracy: float | None = None
    certainty: float | None = None
    coverage: float | None = None
    latency_ms: float | None = None
    p95_latency_ms: float | None = None
    energy_mj: float | None = None
    bytes_sent: float | None = None
    peak_bytes: int | None = None
    share_asked: float | None = None

    def __post_init__(self) -> None:
        limits = {name: getattr(self, name) for name in (*_AT_LEAST, *_AT_MOST)}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if not given:
            raise BudgetError("the requirement limits nothing", hint="set a limit such as latency_ms")
        for name, limit in given.items():
            if name in _AT_LEAST and not 0 < limit <= 1:
                raise BudgetError(f"the required {name} is {limit:g}; it must lie above 0 and be at most 1")
            if name in _AT_MOST and not (limit > 0 or (name in _MAY_BE_NOTHING and limit == 0)):
                raise BudgetError(f"the limit of {name} is {limit:g}; it must be above zero")
        if self.certainty is not None:
            self._check_promise(self.certainty)

    def _check_promise(self, certainty: float) -> None:
        if not 0 < certainty < 1:
            raise BudgetError(f"the certainty is {certainty:g}; it must lie between 0 and 1")
        if self.accuracy == 1 or (self.accuracy is None and self.latency_ms is None):
            raise BudgetError(
                "only an accuracy below 1 or a latency can be promised with a certainty",
                hint="set accuracy, max_drop or latency_ms",
            )

    @classmethod
    def of(cls, budget: Budget) -> Requirement:
        """The same as a budget: the most accurate within its latency and memory that answers every sample."""
        peak_bytes = None if budget.memory_mb is None else round(budget.memory_mb * MB)
        return cls(coverage=1.0, latency_ms=budget.latency_ms, peak_bytes=peak_bytes)

    @property
    def limits(self) -> list[tuple[str, float, bool]]:
        """The limits set: name of the quantity, its limit, and True if that is the least allowed, False if the most."""
        named = [(name, getattr(self, name), name in _AT_LEAST) for name in (*_AT_LEAST, *_AT_MOST)]
        return [(name, limit, is_least) for name, limit, is_least in named if limit is not None]

    def misses(self, cost: PlanCost) -> dict[str, float]:
        """The limits that ``cost`` breaks, each with its value; an unknown value breaks its limit (as inf, or 0)."""
        broken: dict[str, float] = {}
        for name, limit, is_least in self.limits:
            value = getattr(cost, name)
            if value is None or (value < limit if is_least else value > limit):
                broken[name] = (0.0 if is_least else math.inf) if value is None else value
        return broken

    def value(self, cost: PlanCost) -> float:
        """Value of the optimised quantity, negated where less is better; minus infinity where it is unknown."""
        value = getattr(cost, self.optimise)
        if value is None:
            return -math.inf
        return float(value) if self.optimise == "accuracy" else -float(value)

    def excess(self, cost: PlanCost) -> float:
        """Sum of the relative distances by which ``cost`` misses the limits; 0 where it keeps them."""
        excess = 0.0
        for name, value in self.misses(cost).items():
            limit = getattr(self, name)
            excess += abs(value - limit) / limit if limit else value
        return excess


def best_plan(judged: Iterable[tuple[Plan, PlanCost]], requirement: Requirement) -> tuple[Plan, PlanCost]:
    """The plan that ``requirement`` puts first; of equals the quickest.

    Raises:
        InfeasibleBudgetError: none keeps the limits; names the nearest and the limits that it misses.
        BudgetError: there are no plans.
    """
    pairs = list(judged)
    if not pairs:
        raise BudgetError("there are no plans to choose from")
    kept = [pair for pair in pairs if not requirement.misses(pair[1])]
    if kept:
        return max(kept, key=lambda pair: (requirement.value(pair[1]), -_latency_ms(pair[1])))
    plan, cost = min(pairs, key=lambda pair: requirement.excess(pair[1]))
    missed = ", ".join(f"{name} {value:.4g}" for name, value in requirement.misses(cost).items())
    raise InfeasibleBudgetError(
        f"no plan keeps the requirement; the nearest has {missed}",
        nearest=plan.subnet.block_ids,
        nearest_latency_ms=_latency_ms(cost),
        nearest_peak_bytes=cost.peak_bytes,
        hint="relax what it misses",
    )


def _latency_ms(cost: PlanCost) -> float:
    return math.inf if cost.latency_ms is None else cost.latency_ms


Kind = Literal["subnets", "exits", "cascade", "abstain", "ask", "split", "hybrid"]
KINDS: tuple[Kind, ...] = ("subnets", "exits", "cascade", "abstain", "ask", "split", "hybrid")
"""What may be considered.

``subnets``: other subnets than the one in use; ``exits``: early exits; ``cascade``: hard samples answered by a second,
more accurate subnet on this device; ``abstain``: hard samples without an answer;
``ask``: hard samples sent to a server; ``split``: the rest of the path at a server; ``hybrid``: a subnet here together
with one at a server.
"""

_MEDIAN = 50.0
_LEAST = ("latency_ms", "latency_ratio", "p95_latency_ms", "calls_per_second", "energy_mj", "macs", "memory_mb")
_SHARES = ("accuracy", "max_drop", "coverage", "share_asked")


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Optimise one quantity under limits on others. Expected values per sample, at batch 1.

    ``latency_ms``: of the calls at ``percentile`` when nothing else runs, and of plans whose samples take several ways,
    the mean; or ``latency_ratio``: of the full model's in the same circumstances. ``calls_per_second``: the
    application's pace; caches are colder between rare calls. None: the pace of the last calls, if any.
    ``accuracy``: the least, of samples that are answered; ``max_drop``: accuracy, or another score, that exits or a
    split may lose instead. With ``certainty`` either holds on new samples like the private ones with this probability,
    and so does the mean latency of a cascade, which without one holds with 0.9.
    ``coverage``: least share of samples that are answered; ``share_asked``: most that a server is asked about.
    ``macs``: most multiply-accumulate operations of a hybrid, wherever they run. ``memory_mb``: most memory on the
    device, weights and working set; ``storage_mb``: most of its weights as a split stores them. ``threads``: most of
    the homes that subnets are searched for.

    Raises:
        BudgetError: a limit makes no sense, or two contradict each other.
    """

    optimise: Optimised = "accuracy"
    latency_ms: float | None = None
    latency_ratio: float | None = None
    percentile: float = _MEDIAN
    p95_latency_ms: float | None = None
    calls_per_second: float | None = None
    accuracy: float | None = None
    certainty: float | None = None
    max_drop: float | None = None
    coverage: float = 1.0
    share_asked: float | None = None
    energy_mj: float | None = None
    bytes_sent: float | None = None
    macs: float | None = None
    memory_mb: float | None = None
    storage_mb: float | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in _LEAST:
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise BudgetError(f"the goal's {name} is {limit:g}; it must be above zero")
        for name in _SHARES:
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise BudgetError(f"the goal's {name} is {share:g}; it must lie between 0 and 1")
        if self.latency_ms is not None and self.latency_ratio is not None:
            raise BudgetError("the goal has latency_ms and latency_ratio; one of them is enough")
        if self.accuracy is not None and self.max_drop is not None:
            raise BudgetError("the goal has accuracy and max_drop; one of them is enough")
        if self.certainty is not None and not 0 < self.certainty < 1:
            raise BudgetError(f"the certainty is {self.certainty:g}; it must lie between 0 and 1")
        if self.threads is not None and self.threads < 1:
            raise BudgetError(f"the goal has {self.threads} threads; it must have at least 1")
        if not 0 < self.percentile < 100:
            raise BudgetError(f"the goal's percentile is {self.percentile:g}; it must lie between 0 and 100")
        self.requirement()  # refuses the rest

    @property
    def limits_latency(self) -> bool:
        """True if there is a latency limit of either kind."""
        return self.latency_ms is not None or self.latency_ratio is not None

    @property
    def is_budget(self) -> bool:
        """True if the most accurate plan within a latency, a memory or both is wanted, and nothing else is limited."""
        others = (self.accuracy, self.max_drop, self.p95_latency_ms, self.energy_mj, self.bytes_sent)
        few = self.optimise == "accuracy" and all(one is None for one in (*others, self.share_asked, self.macs))
        return few and (self.limits_latency or self.memory_mb is not None)

    def resolved(self, latency_ms: float | None) -> Goal:
        """The same with this latency in place of a ratio to the full model's."""
        return msgspec.structs.replace(self, latency_ms=latency_ms, latency_ratio=None) if self.latency_ratio else self

    def budget(self) -> Budget:
        """The limits that a single subnet has to keep."""
        return Budget(
            latency_ms=self.latency_ms,
            latency_ratio=self.latency_ratio,
            percentile=self.percentile,
            calls_per_second=self.calls_per_second,
            memory_mb=self.memory_mb,
            threads=self.threads,
        )

    def requirement(self, *, least_accuracy: float | None = None) -> Requirement:
        """The limits on expected costs; ``least_accuracy``: what ``max_drop`` comes to."""
        known = (self.accuracy, least_accuracy, self.latency_ms)  # what a certainty is about; else it is still relative
        is_open = all(one is None for one in known) and (self.max_drop is not None or self.latency_ratio is not None)
        return Requirement(
            optimise=self.optimise,
            accuracy=self.accuracy if least_accuracy is None else least_accuracy,
            certainty=None if is_open else self.certainty,
            coverage=self.coverage or None,
            latency_ms=self.latency_ms,
            p95_latency_ms=self.p95_latency_ms,
            energy_mj=self.energy_mj,
            bytes_sent=self.bytes_sent,
            peak_bytes=None if self.memory_mb is None else round(self.memory_mb * MB),
            share_asked=self.share_asked,
        )
