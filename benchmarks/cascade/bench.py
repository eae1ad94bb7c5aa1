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
from benchmarks.sure.judging import Judge
from benchmarks.sure.networks import Samples, Skipped, photograph_samples
from device_sdk.errors import PathweaveError
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
_QUICKER = 0.95
_RUNGS_FROM = 0.7  # of a budget: rungs from there on may be the most accurate within it
TARGETS = {
    **{f"mean_gain_points_{name}": Target(minimum=least) for name, least in ((CIFAR, 0.5), (LITE, 1.0), (LITE0, 0.0))},
    **{f"mean_gain_low_points_{name}": Target(minimum=0.0) for name in BUDGET_RATIOS},
    **{f"over_hand_made_points_{name}": Target(minimum=0.0) for name in BUDGET_RATIOS},
    **{f"over_budget_share_{name}": Target(maximum=0.0) for name in BUDGET_RATIOS},
    **{f"refused_runs_{name}": Target(maximum=0.0) for name in BUDGET_RATIOS},
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
    for network in _networks(options):
        if isinstance(network, Skipped):
            table.append({"network": network.name, "what": "skipped", "reason": network.reason})
            continue
        own, rows = _of_network(network, options)
        figures |= own
        table += rows
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


def _of_network(network: _Network, options: BenchOptions) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Figures and rows. Rungs that a quicker one matches in accuracy cannot be the best, and are not timed."""
    ratios = BUDGET_RATIOS[network.name][: 2 if options.quick else None]
    with AdaptiveModel.open(network.folder, state_folder=options.work_folder / network.name) as model:
        duels, refusals = _duels(model, network, ratios, options)
        rungs = _worthwhile(model, ratios, network.report)
        plans = [*(plan for one in duels for plan in (one.found.plan, one.hand_made)), *map(Plan, rungs)]
        judged = judged_plans(model, plans, network.report)
    rows = [*refusals, *(_row(network, one, judged, rungs) for one in duels)]
    gains, over_hand = [], []
    for one in duels:
        ours, hand = judged[one.found.plan], judged[one.hand_made]
        rung = _best_rung(rungs, judged, ours.ratio)
        if rung is not None:
            gains.append(ours.right.astype(np.float64) - judged[Plan(rung)].right)
        over_hand.append(ours.right.astype(np.float64) - hand.right)
    figures = gain("mean_gain", gains) | gain("over_hand_made", over_hand) | {"refused_runs": float(len(refusals))}
    if duels:
        pairs = [(judged[one.found.plan].ratio, judged[one.hand_made].ratio, one.ratio) for one in duels]
        figures["hand_made_over_ours_latency"] = float(np.mean([hand / ours for ours, hand, _ in pairs]))
        figures["over_budget_share"] = float(np.mean([ours > EQUAL_LATENCY * ratio for ours, _, ratio in pairs]))
    return {f"{name}_{network.name}": value for name, value in figures.items()}, rows


def _worthwhile(model: AdaptiveModel, ratios: Sequence[float], samples: Samples) -> list[Subnet]:
    """Rungs near the budgets, without those that a rung predicted to be 5 % quicker matches in accuracy."""
    costs = model.profile().cost_model()
    predicted = {
        one: costs.latency_ms(one) / costs.latency_ms(model.bundle.supernet.original) for one in rungs_of(model)
    }
    near = [one for one, own in predicted.items() if any(_RUNGS_FROM * ratio <= own <= ratio for ratio in ratios)]
    judge = Judge(model.bundle)
    try:
        right = {one: float(mask.mean()) for one, mask in judge.right(near, samples).items()}
    finally:
        judge.close()

    def is_matched(rung: Subnet) -> bool:
        quicker = (one for one in near if predicted[one] <= _QUICKER * predicted[rung])
        return any(right[one] >= right[rung] for one in quicker)

    return [one for one in near if not is_matched(one)]


def _duels(
    model: AdaptiveModel, network: _Network, ratios: Sequence[float], options: BenchOptions
) -> tuple[list[_Duel], list[dict[str, object]]]:
    """Adaptations to each budget with the cascades made by hand, and rows of those that were refused."""
    samples, by_hand = network.search, ByHand(model, network.search)
    settings = AdaptationSettings(time_limit_s=1.0 if options.quick else TIME_LIMIT_S, use_prior=False)
    duels, refusals = list[_Duel](), list[dict[str, object]]()
    with options.progress.task(f"adapt {network.name}", len(ratios)) as task:
        for ratio in ratios:
            goal = Goal(latency_ratio=ratio)
            try:
                found = model.adapt(samples.images, goal, {"subnets", "cascade"}, samples.labels, settings=settings)
                duels.append(_Duel(ratio, found, by_hand.within(ratio)))
            except PathweaveError as error:
                refusals.append({"network": network.name, "budget_ratio": ratio, "refusal": str(error)})
            task.advance()
    return duels, refusals


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
