"""Plans that ``adapt`` chose against the ladder of plain networks: measured in turns, judged on other samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.tasks.case import Answers, Case, Part
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.policies.confirmation import DEFAULT_PAUSE_S, EQUAL_LATENCY
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.profiling.profile import measure_subnets
from device_sdk.profiling.stretches import Timing
from device_sdk.progress import Progress
from device_sdk.search.ladder import ladder
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan, Subnet

SETTINGS = AdaptationSettings(time_limit_s=10.0)
_ROUNDS, _TOGETHER = 40, 16
ADAPTED, UNLABELLED, LADDER = "adapted", "without labels", "ladder"


@dataclass(frozen=True)
class Judged:
    """A plan with its latency relative to the full model's, and its score on the samples of the report, in percent."""

    what: str
    ratio: float
    plan: Plan
    latency_ratio: float
    percent: float

    def row(self, case: Case) -> dict[str, object]:
        """For the table."""
        measured = {"ratio": self.ratio, "latency_ratio": self.latency_ratio, "percent": self.percent}
        return case.row(self.what, self.plan, **measured)


class CaseJudge:
    """Adapts an open model of ``case`` to budgets and judges what it chose."""

    def __init__(self, case: Case, model: AdaptiveModel, progress: Progress) -> None:
        self._case, self.model, self._progress = case, model, progress
        self._workspace = model._in_use.lend_workspace()
        self.original: Subnet = self._workspace.supernet.original
        self._percents: dict[Plan, float] = {}
        rungs = [rung for column in ladder(self._workspace.supernet) for rung in column]
        self._ladder = dict(zip(rungs, self._ratios(rungs), strict=True))
        self._searched: dict[Subnet, float] = {}

    def full(self) -> Judged:
        """The full model."""
        return self._judged("full model", 1.0, Plan(self.original), 1.0)

    def at(self, ratio: float) -> list[Judged]:
        """The choices of ``adapt`` with labels and without, and the ladder's best that keeps the budget."""
        goal, case = Goal(latency_ratio=ratio), self._case
        plans = {UNLABELLED: self._adapted(goal, None)}
        plans[ADAPTED] = self._adapted(goal, case.search) if case.labelled else plans[UNLABELLED]
        plans[LADDER] = Plan(self._best_rung(ratio))
        taken = self._ratios([plan.subnet for plan in plans.values()])
        return [self._judged(what, ratio, plan, own) for (what, plan), own in zip(plans.items(), taken, strict=True)]

    def adapted(self, ratio: float) -> Judged:
        """The choice of ``adapt`` with labels, also where no rung of the ladder keeps the budget."""
        plan = self._adapted(Goal(latency_ratio=ratio), self._case.search)
        return self._judged(ADAPTED, ratio, plan, self._ratios([plan.subnet])[0])

    def _best_rung(self, ratio: float) -> Subnet:
        """The best by the case's metric on the samples that choose, as a developer would pick it."""
        fitting = [rung for rung, taken in self._ladder.items() if taken <= EQUAL_LATENCY * ratio]
        if not fitting:
            raise RuntimeError(f"{self._case.name}: no plain network keeps {ratio:g} of the latency")
        for rung in fitting:
            if rung not in self._searched:
                self._searched[rung] = self.percent(Plan(rung), self._case.search)
        return max(fitting, key=lambda rung: self._searched[rung])

    def _judged(self, what: str, ratio: float, plan: Plan, latency_ratio: float) -> Judged:
        if plan not in self._percents:
            self._percents[plan] = self.percent(plan, self._case.report)
        return Judged(what, ratio, plan, latency_ratio, self._percents[plan])

    def _adapted(self, goal: Goal, part: Part | None) -> Plan:
        labels = None if part is None else part.targets
        with self._progress.task(f"{self._case.name}: adapt to {goal.latency_ratio:g}", 1) as task:
            try:
                found = self.model.adapt(self._case.search.samples, goal, labels=labels, take=False, settings=SETTINGS)
            except InfeasibleBudgetError as error:
                raise RuntimeError(f"{self._case.name}: no subnet is fast enough: {error}") from error
            task.advance()
        return found.plan

    def _ratios(self, subnets: Sequence[Subnet]) -> list[float]:
        """Latencies over the full model's, in turns, at the pace at which adaptation measures."""
        timing = Timing(rounds=_ROUNDS, pause_s=DEFAULT_PAUSE_S)
        full, *others = measure_subnets(self._workspace, [self.original, *subnets], timing)
        return [one.median_ms / full.median_ms if one.ratio is None else one.ratio.value for one in others]

    def percent(self, plan: Plan, part: Part) -> float:
        """The score of ``plan`` on ``part``."""
        return self._case.percent(self.answers(plan, part), part.targets)

    def answers(self, plan: Plan, part: Part) -> list[Answers]:
        """The output for each sample."""
        self.model.use(plan)
        found: list[Answers] = []
        for at in range(0, len(part), _TOGETHER):
            found += list(self.model(part.samples[at : at + _TOGETHER]).output)
        return found


def case_figures(case: Case, full: Judged, judged: Sequence[Judged]) -> dict[str, float]:
    """``below_ladder_CASE`` and ``unlabelled_CASE`` in points, and the scores behind them."""
    by_ratio: dict[float, dict[str, Judged]] = {}
    for one in judged:
        by_ratio.setdefault(one.ratio, {})[one.what] = one
    figures = {
        f"below_ladder_{case.name}": max(_points_below(one, ADAPTED, LADDER) for one in by_ratio.values()),
        f"full_{case.name}": full.percent,
    }
    if case.labelled:
        figures[f"unlabelled_{case.name}"] = max(_points_below(one, UNLABELLED, ADAPTED) for one in by_ratio.values())
    for ratio, plans in by_ratio.items():
        figures |= {f"{what}_{case.name}_at_{ratio:g}": plans[what].percent for what in (ADAPTED, LADDER)}
    return figures


def _points_below(plans: Mapping[str, Judged], one: str, other: str) -> float:
    return plans[other].percent - plans[one].percent
