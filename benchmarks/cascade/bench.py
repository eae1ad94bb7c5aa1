"""Cascade: accuracy of plans with a second path at each mean latency, against the best rung and a cascade by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cascade.by_hand import ByHand, rungs_of
from benchmarks.cascade.judging import Judged, judged_plans
from benchmarks.family.networks import CIFAR, LITE, families
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.lite import lite_bundle, missing_weights
from benchmarks.sure.figures import gain
from benchmarks.sure.networks import Samples, Skipped, photograph_samples
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan, Subnet
from pathweave import AdaptiveModel

LITE0 = "lite0"
BUDGET_RATIOS: Mapping[str, Sequence[float]] = {
    CIFAR: (0.28, 0.33, 0.4, 0.5),
    LITE: (0.2, 0.3, 0.4, 0.5),
    LITE0: (0.35, 0.5, 0.65, 0.8),
}
TIME_LIMIT_S = 15.0
EQUAL_LATENCY = 1.02  # latencies within 2 % are equal
_RUNGS_FROM = 0.7  # of a budget: rungs from there on may be the most accurate within it
TARGETS = {
    **{f"mean_gain_points_{name}": Target(minimum=least) for name, least in ((CIFAR, 0.5), (LITE, 1.0), (LITE0, 0.0))},
    **{f"mean_gain_low_points_{name}": Target(minimum=0.0) for name in BUDGET_RATIOS},
    **{f"over_hand_made_points_{name}": Target(minimum=0.0) for name in BUDGET_RATIOS},
    "over_budget_share": Target(maximum=0.1),
}


@dataclass(frozen=True)
class _Network:
    name: str
    folder: Path
    search: Samples
    report: Samples


@dataclass(frozen=True)
class _Duel:
    """Ours, chosen within ``ratio`` of the full model's latency, and the cascade made by hand within the same."""

    ratio: float
    found: Found
    hand_made: Plan


def run(options: BenchOptions) -> BenchOutcome:
    """Plans are chosen on #search with subnets and cascades considered, and looked at once on #report.

    The best rung is the most accurate of at most the same measured mean latency, in hindsight on #report, which favours
    it. By hand: two rungs and a confidence, as a user would choose them on #search.
    """
    figures: dict[str, float] = {}
    table: list[dict[str, object]] = []
    over: list[bool] = []
    for network in _networks(options):
        if isinstance(network, Skipped):
            table.append({"network": network.name, "what": "skipped", "reason": network.reason})
            continue
        own, rows, broken = _of_network(network, options)
        figures |= own
        table += rows
        over += broken
    if over:
        figures["over_budget_share"] = float(np.mean(over))
    return BenchOutcome(figures, table, data="imagenette/val.zip, cifar10/test.zip: #search, judged on #report")


def _networks(options: BenchOptions) -> Iterator[_Network | Skipped]:
    for family in families(options):
        if isinstance(family, Skipped):
            yield family
        else:
            yield _Network(family.name, family.folder, family.search, family.report)
    if options.quick:
        return
    missing = missing_weights(options, 0)
    if missing is not None:
        yield Skipped(LITE0, missing)
        return
    folder = lite_bundle(options, 0, trained=True)
    search, report = (photograph_samples(options, folder, part) for part in ("search", "report"))
    yield _Network(LITE0, folder, search, report)


def _of_network(
    network: _Network, options: BenchOptions
) -> tuple[dict[str, float], list[dict[str, object]], list[bool]]:
    ratios = BUDGET_RATIOS[network.name][: 2 if options.quick else None]
    with AdaptiveModel.open(network.folder, state_folder=options.work_folder / network.name) as model:
        duels, rungs = _duels(model, network, ratios, options)
        plans = [*(plan for one in duels for plan in (one.found.plan, one.hand_made)), *map(Plan, rungs)]
        judged = judged_plans(model, plans, network.report)
    rows = [_row(network, one, judged, rungs) for one in duels]
    gains, over_hand = [], []
    for one in duels:
        ours, hand = judged[one.found.plan], judged[one.hand_made]
        rung = _best_rung(rungs, judged, ours.ratio)
        if rung is not None:
            gains.append(ours.right.astype(np.float64) - judged[Plan(rung)].right)
        over_hand.append(ours.right.astype(np.float64) - hand.right)
    figures = gain("mean_gain", gains) | gain("over_hand_made", over_hand)
    figures["hand_made_over_ours_latency"] = float(
        np.mean([judged[one.hand_made].ratio / judged[one.found.plan].ratio for one in duels])
    )
    broken = [judged[one.found.plan].ratio > EQUAL_LATENCY * one.ratio for one in duels]
    return {f"{name}_{network.name}": value for name, value in figures.items()}, rows, broken


def _duels(
    model: AdaptiveModel, network: _Network, ratios: Sequence[float], options: BenchOptions
) -> tuple[list[_Duel], list[Subnet]]:
    """Adaptations to each budget, the cascades made by hand, and the rungs that may be rivals."""
    costs, original, samples = model.profile().cost_model(), model.bundle.supernet.original, network.search
    settings = AdaptationSettings(time_limit_s=1.0 if options.quick else TIME_LIMIT_S, use_prior=False)
    by_hand, duels = ByHand(model, samples), []
    with options.progress.task(f"adapt {network.name}", len(ratios)) as task:
        for ratio in ratios:
            goal = Goal(latency_ratio=ratio)
            found = model.adapt(samples.images, goal, {"subnets", "cascade"}, samples.labels, settings=settings)
            duels.append(_Duel(ratio, found, by_hand.within(ratio)))
            task.advance()
    full_ms = costs.latency_ms(original)

    def near(rung: Subnet) -> bool:
        return any(_RUNGS_FROM * ratio <= costs.latency_ms(rung) / full_ms <= ratio for ratio in ratios)

    return duels, [one for one in rungs_of(model) if near(one)]


def _best_rung(rungs: Sequence[Subnet], judged: Mapping[Plan, Judged], ratio: float) -> Subnet | None:
    fitting = [one for one in rungs if judged[Plan(one)].ratio <= EQUAL_LATENCY * ratio]
    return max(fitting, key=lambda one: float(judged[Plan(one)].right.mean()), default=None)


def _row(network: _Network, one: _Duel, judged: Mapping[Plan, Judged], rungs: Sequence[Subnet]) -> dict[str, object]:
    plan, cost = one.found.plan, one.found.expected
    ours, hand = judged[plan], judged[one.hand_made]
    rung = _best_rung(rungs, judged, ours.ratio)
    row: dict[str, object] = {"network": network.name, "budget_ratio": one.ratio, "kind": plan.kind}
    row |= {"first": str(plan.subnet), "second": str(plan.second), "seconds": one.found.seconds}
    row |= {"expected_accuracy": cost.accuracy, "accuracy": 100 * float(ours.right.mean()), "ratio": ours.ratio}
    row |= {"expected_share_second": cost.share_second, "share_second": ours.share_second}
    row |= {"hand_made": f"{one.hand_made.subnet} → {one.hand_made.second}", "hand_made_ratio": hand.ratio}
    row |= {"hand_made_accuracy": 100 * float(hand.right.mean()), "hand_made_share_second": hand.share_second}
    if rung is not None:
        other = judged[Plan(rung)]
        row |= {"rung": str(rung), "rung_ratio": other.ratio, "rung_accuracy": 100 * float(other.right.mean())}
    return row
