"""Tasks: texts adapted on the device against the ladder of plain networks, without labels, and with exits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.tasks.texts import Texts, text_bundle, texts_by_part
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.policies.subnet_search import DEFAULT_PAUSE_S, EQUAL_LATENCY
from device_sdk.profiling.profile import measure_subnets
from device_sdk.profiling.stretches import Timing
from device_sdk.search.ladder import ladder
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan, Subnet

TARGETS = {
    "worst_below_ladder": Target(maximum=1.0),
    "unlabelled_below_labelled": Target(maximum=1.0),
    "exits_saved": Target(minimum=0.3),
    "exits_lost_points": Target(maximum=0.5),
}
RATIOS, QUICK_RATIOS = (0.7, 0.45), (0.5,)
_ROUNDS, _TOGETHER = 60, 64
_MOST_DROP = 0.005
_SETTINGS = AdaptationSettings(time_limit_s=20.0)

Right = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Judged:
    """A plan with its latency relative to the full model's, and which texts of the report it answers rightly."""

    what: str
    ratio: float
    plan: Plan
    latency_ratio: float
    right: Right

    def row(self) -> dict[str, object]:
        """For the table."""
        return {
            "what": self.what,
            "budget_ratio": self.ratio,
            "plan": str(self.plan.subnet)[:120],
            "kind": self.plan.kind,
            "latency_ratio": self.latency_ratio,
            "accuracy": float(self.right.mean()),
        }


def run(options: BenchOptions) -> BenchOutcome:
    """MiniLM on WordNet's topics, one thread; plans are chosen on one part of the texts and judged once on another.

    1. adapt to budgets, with labels and without; 2. the most accurate rung of the ladder (a rendition and a number of
    tokens throughout) that keeps each budget, measured; 3. the fastest plan with exits that loses half a point at most.
    ``exits_saved``: of the mean latency of the same subnet without exits.

    Raises:
        FileNotFoundError, ModuleNotFoundError: there are no texts, or no encoder.
    """
    parts = texts_by_part(options)
    folder = text_bundle(options, parts)
    with AdaptiveModel.open(folder, state_folder=options.work_folder / "state") as model:
        bench = _Bench(model, parts["search"], parts["report"])
        judged = [one for ratio in (QUICK_RATIOS if options.quick else RATIOS) for one in bench.at(ratio)]
        exits = bench.with_exits()
        full = bench.judged("full model", 1.0, Plan(bench.original), 1.0)
    rows = [full.row(), *(one.row() for one in judged), exits.row()]
    return BenchOutcome(_figures(full, judged, exits), rows, data="WordNet 3.1: glosses of nouns by lexicographer file")


def _figures(full: Judged, judged: Sequence[Judged], exits: _Exits) -> dict[str, float]:
    by_ratio: dict[float, dict[str, Judged]] = {}
    for one in judged:
        by_ratio.setdefault(one.ratio, {})[one.what] = one
    below_ladder = [_points_below(one, "adapted", "ladder") for one in by_ratio.values()]
    unlabelled = [_points_below(one, "without labels", "adapted") for one in by_ratio.values()]
    return {
        "worst_below_ladder": max(below_ladder),
        "unlabelled_below_labelled": max(unlabelled),
        "exits_saved": exits.saved,
        "exits_lost_points": exits.lost_points,
        "full_accuracy": float(full.right.mean()),
        **{f"accuracy_at_{ratio:g}": float(one["adapted"].right.mean()) for ratio, one in by_ratio.items()},
        **{f"ladder_at_{ratio:g}": float(one["ladder"].right.mean()) for ratio, one in by_ratio.items()},
    }


def _points_below(plans: Mapping[str, Judged], one: str, other: str) -> float:
    return 100 * float(plans[other].right.mean() - plans[one].right.mean())


@dataclass(frozen=True)
class _Exits:
    """The fastest plan with exits, against its subnet without them, on the texts of the report."""

    plan: Plan
    saved: float
    lost_points: float

    def row(self) -> dict[str, object]:
        return {
            "what": "exits",
            "kind": self.plan.kind,
            "plan": str(self.plan.subnet)[:120],
            "saved": self.saved,
            "lost_points": self.lost_points,
        }


class _Bench:
    def __init__(self, model: AdaptiveModel, search: Texts, report: Texts) -> None:
        self._model, self._search, self._report = model, search, report
        self._workspace = model._in_use.lend_workspace()
        self.original: Subnet = self._workspace.supernet.original
        self._rungs = [rung for column in ladder(self._workspace.supernet) for rung in column]
        self._right: dict[Plan, Right] = {}
        ratios = self._ratios(self._rungs)
        self._ladder = {rung: (ratio, self._accuracy(rung)) for rung, ratio in zip(self._rungs, ratios, strict=True)}

    def at(self, ratio: float) -> list[Judged]:
        """The choices of ``adapt`` with labels and without, and the ladder's best."""
        goal = Goal(latency_ratio=ratio)
        labelled = self._adapted(goal, self._search.labels)
        unlabelled = self._adapted(goal, None)
        fitting = [rung for rung, (taken, _) in self._ladder.items() if taken <= EQUAL_LATENCY * ratio]
        best = max(fitting, key=lambda rung: self._ladder[rung][1])
        plans = {"adapted": labelled.plan, "without labels": unlabelled.plan, "ladder": Plan(best)}
        taken = self._ratios([one.subnet for one in plans.values()])
        return [self.judged(what, ratio, plan, own) for (what, plan), own in zip(plans.items(), taken, strict=True)]

    def with_exits(self) -> _Exits:
        """Exits alone may cost accuracy: compared with the same subnet."""
        goal = Goal(optimise="latency_ms", max_drop=_MOST_DROP)
        found = self._model.adapt(
            self._search.texts, goal, {"subnets", "exits"}, self._search.labels, take=False, settings=_SETTINGS
        )
        plain = Plan(found.plan.subnet).with_prior(found.plan.class_prior)
        measured = found.measured
        saved = 0.0
        if measured is not None and measured.without_exits_ms is not None:
            saved = 1 - measured.latency_ms / measured.without_exits_ms
        lost = 100 * float(self._answered(plain).mean() - self._answered(found.plan).mean())
        return _Exits(found.plan, saved, lost)

    def judged(self, what: str, ratio: float, plan: Plan, latency_ratio: float) -> Judged:
        """``plan`` on the texts of the report."""
        return Judged(what, ratio, plan, latency_ratio, self._answered(plan))

    def _adapted(self, goal: Goal, labels: npt.NDArray[np.int64] | None) -> Found:
        try:
            return self._model.adapt(self._search.texts, goal, labels=labels, take=False, settings=_SETTINGS)
        except InfeasibleBudgetError as error:
            raise RuntimeError(f"the bench needs shorter texts: {error}") from error

    def _ratios(self, subnets: Sequence[Subnet]) -> list[float]:
        """Latencies over the full model's, in turns, at the pace at which adaptation measures."""
        timing = Timing(rounds=_ROUNDS, pause_s=DEFAULT_PAUSE_S)
        full, *others = measure_subnets(self._workspace, [self.original, *subnets], timing)
        return [one.median_ms / full.median_ms if one.ratio is None else one.ratio.value for one in others]

    def _accuracy(self, subnet: Subnet) -> float:
        return float(self._rightly(Plan(subnet), self._search).mean())

    def _answered(self, plan: Plan) -> Right:
        if plan not in self._right:
            self._right[plan] = self._rightly(plan, self._report)
        return self._right[plan]

    def _rightly(self, plan: Plan, texts: Texts) -> Right:
        self._model.use(plan)
        found = [
            self._model(texts.texts[at : at + _TOGETHER]).output.argmax(axis=1)
            for at in range(0, len(texts.texts), _TOGETHER)
        ]
        return np.asarray(np.concatenate(found) == texts.labels)
