"""The plan pool: the plans that a device exchanges as it becomes slower and faster (AdaptiveNet §5.1, §5.3)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from device_sdk.errors import UsageError
from device_sdk.policies.found import Found
from device_sdk.search.port import Candidate, by_expected_accuracy
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.plan import Plan, Subnet
from device_sdk.supernet.supernet import Supernet

RUNG = 1.3  # latencies of neighbouring rungs differ by this factor
_MAX_RUNGS = 16  # in each direction
_OUT_OF_BUDGET = 1.06  # what measured too slow counts as this much of the budget
_ROUNDING = 1.001


POOL_FORMAT = 2  # of stored pools


class PlanPool(msgspec.Struct, frozen=True, tag_field="format", tag=POOL_FORMAT):
    """[plan, latency, accuracy] of the subnets worth running at some latency, and the budget that they are for.

    Each candidate has a plan of its own: exits and deciders were calibrated for its subnet, or it has none. Latencies
    are estimates for the device as it was when ``chosen`` was measured: predictions times ``correction``.
    """

    budget: Budget
    chosen: Subnet
    candidates: tuple[Candidate, ...]
    correction: float = 1.0

    def find(self, subnet: Subnet) -> Candidate | None:
        """The candidate of this subnet, if it is here."""
        return next((one for one in self.candidates if one.subnet == subnet), None)

    def with_more(self, predicted: Iterable[Candidate]) -> PlanPool:
        """The pool with further candidates, given with predicted latencies, reduced to its front and the chosen one."""
        corrected = [_at(one, one.cost.latency_ms * self.correction) for one in predicted]
        kept = front([*self.candidates, *corrected])
        chosen = self.find(self.chosen)
        if chosen is not None and all(one.subnet != chosen.subnet for one in kept):
            kept.append(chosen)
        return msgspec.structs.replace(self, candidates=tuple(sorted(kept, key=lambda one: one.cost.latency_ms)))

    def with_plans(self, plans: Mapping[Subnet, Plan]) -> PlanPool:
        """The same candidates, with these plans for their subnets."""
        changed = tuple(replace(one, plan=plans.get(one.subnet, one.plan)) for one in self.candidates)
        return msgspec.structs.replace(self, candidates=changed)

    def plans_without_exits(self, held: Collection[str]) -> dict[Subnet, Plan]:
        """The plans that change where only the exits ``held`` remain, by subnet."""
        kept = {one.subnet: one.plan.with_exits_of(held) for one in self.candidates}
        return {one.subnet: kept[one.subnet] for one in self.candidates if kept[one.subnet] != one.plan}

    def for_budget(self, budget: Budget) -> PlanPool:
        """The same candidates, to keep another budget with."""
        return msgspec.structs.replace(self, budget=budget)

    def known_to(self, supernet: Supernet) -> PlanPool | None:
        """The pool with only the sound candidates that ``supernet`` has; None if it cannot be used then.

        It needs the chosen subnet, a latency budget and a positive correction.
        """
        sound = tuple(one for one in self.candidates if _sound(one) and _is_plan(supernet, one.plan))
        pool = msgspec.structs.replace(self, candidates=sound)
        usable = pool.find(self.chosen) is not None and self.budget.latency_ms is not None and self.correction > 0
        return pool if usable else None


def pool_of(found: Found, more: Iterable[Candidate] = ()) -> PlanPool:
    """The pool that an adaptation leaves, with ``more`` as predicted; estimates agree with what the chosen measured.

    A candidate that was expected to fit, is more accurate and was not chosen measured too slow: it counts as a little
    over the budget, for better times. The pool counts in medians: a budget at another percentile is converted.

    Raises:
        UsageError: there is no latency budget to keep.
    """
    budget, measured = found.goal.budget(), found.measured
    if budget.latency_ms is None:
        raise UsageError("live update keeps a latency budget, and there is none", hint="set Goal(latency_ms=…)")
    assert measured is not None
    median_ms = measured.without_exits_ms or measured.median_ms
    budget = msgspec.structs.replace(
        budget, latency_ms=budget.latency_ms * median_ms / measured.latency_ms, percentile=50.0
    )
    assert budget.latency_ms is not None
    chosen = next(one for one in found.pool if one.subnet == found.subnet)
    correction = median_ms / chosen.cost.latency_ms
    over_ms = _OUT_OF_BUDGET * budget.latency_ms / correction

    def placed(one: Candidate) -> Candidate:
        better = by_expected_accuracy(one) < by_expected_accuracy(chosen) and budget.fits_memory(one.cost.peak_bytes)
        return _at(one, over_ms) if better and one.cost.latency_ms < over_ms else one

    empty = PlanPool(budget, chosen.subnet, (), correction)
    with_chosen = msgspec.structs.replace(empty, candidates=(_at(chosen, median_ms),))
    return with_chosen.with_more(placed(one) for one in (*found.pool, *more) if one.subnet != chosen.subnet)


def front(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The Pareto front in latency, peak memory and expected accuracy, by latency (AdaptiveNet §5.3)."""
    ordered = sorted(candidates, key=lambda c: (c.cost.latency_ms, -c.expected_accuracy, c.cost.peak_bytes, c.subnet))
    kept: list[Candidate] = []
    for one in ordered:
        if not any(
            k.expected_accuracy >= one.expected_accuracy and k.cost.peak_bytes <= one.cost.peak_bytes for k in kept
        ):
            kept.append(one)
    return kept


def rungs_ms(fastest_ms: float, slowest_ms: float, *, budget_ms: float) -> Sequence[float]:
    """Latencies at which the pool needs subnets besides the budget: those below it first, the nearest first.

    They reach from the fastest subnet to the slowest, in steps of ``RUNG``; both ends are met with a thousandth to
    spare, so that rounding does not rule them out.
    """
    steps = [RUNG**step for step in range(1, _MAX_RUNGS)]
    down = [budget_ms / step for step in steps if budget_ms / step > fastest_ms * RUNG**0.25]
    up = [budget_ms * step for step in steps if budget_ms * step < slowest_ms / RUNG**0.25]
    if fastest_ms < budget_ms:
        down.append(fastest_ms * _ROUNDING)
    if slowest_ms > budget_ms:
        up.append(slowest_ms * _ROUNDING)
    return [*down, *up]


def _at(one: Candidate, latency_ms: float) -> Candidate:
    return replace(one, cost=msgspec.structs.replace(one.cost, latency_ms=latency_ms))


def _sound(one: Candidate) -> bool:
    return math.isfinite(one.cost.latency_ms) and one.cost.latency_ms > 0 and 0 <= one.accuracy <= 1


def _is_plan(supernet: Supernet, plan: Plan) -> bool:
    try:
        supernet.check_plan(plan)
    except UsageError:
        return False
    return True
