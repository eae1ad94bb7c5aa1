"""Exits on texts: the latency that they save of the same subnet at half a point of accuracy."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.tasks.case import Case
from benchmarks.tasks.judging import SETTINGS, CaseJudge
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan

_MOST_DROP = 0.005


@dataclass(frozen=True)
class SavedByExits:
    """A plan with exits, the share of the mean latency of its subnet without them that it saves, and what it loses."""

    plan: Plan
    saved: float
    lost_points: float

    def row(self, case: Case) -> dict[str, object]:
        """For the table."""
        return case.row("exits", self.plan, saved=self.saved, lost_points=self.lost_points)

    def figures(self) -> dict[str, float]:
        """The two that have targets."""
        return {"exits_saved": self.saved, "exits_lost_points": self.lost_points}


def saved_by_exits(case: Case, judge: CaseJudge) -> SavedByExits:
    """The fastest plan with exits that loses half a point at most, against its subnet without them.

    The latency is measured by ``adapt`` on the samples that choose, the loss counted on those of the report.
    """
    goal = Goal(optimise="latency_ms", max_drop=_MOST_DROP)
    found = judge.model.adapt(
        case.search.samples, goal, {"subnets", "exits"}, case.search.targets, take=False, settings=SETTINGS
    )
    plain = Plan(found.plan.subnet).with_prior(found.plan.class_prior)
    saved, measured = 0.0, found.measured
    if measured is not None and measured.without_exits_ms is not None:
        saved = 1 - measured.latency_ms / measured.without_exits_ms
    before, after = (judge.percent(plan, case.report) for plan in (plain, found.plan))
    return SavedByExits(found.plan, saved, before - after)
