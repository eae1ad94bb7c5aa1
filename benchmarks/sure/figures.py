"""The figures of ``sure``, computed from what was chosen and how it was judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.support.judged import Right
from benchmarks.support.paired import bootstrap_points
from benchmarks.sure.adapting import Run
from benchmarks.sure.ladder import keeps
from benchmarks.sure.serving import Served
from device_sdk.supernet.plan import Subnet


@dataclass(frozen=True)
class JudgedNetwork:
    """A network's adaptations, and what its subnets and rungs are: latencies over the full model's, correctness."""

    name: str
    runs: Sequence[Run]
    rungs: Sequence[Subnet]
    ratios: Mapping[Subnet, float]
    right: Mapping[Subnet, Right]

    def best_rung(self, budget_ratio: float) -> Subnet | None:
        """The most accurate rung within the budget, in hindsight: a bias in favour of the ladder."""
        fitting = [one for one in self.rungs if one in self.right and self.ratios[one] <= budget_ratio]
        return max(fitting, key=lambda one: float(self.right[one].mean()), default=None)

    def below(self, best: Subnet, run: Run) -> float:
        """Points by which ``run``'s choice is less accurate than ``best``."""
        assert run.subnet is not None
        return 100 * float(self.right[best].mean() - self.right[run.subnet].mean())

    def chosen(self, budget_ratio: float) -> list[Run]:
        """The runs within a budget that chose something."""
        return [one for one in self.runs if one.budget_ratio == budget_ratio and one.subnet is not None]

    def over(self, run: Run) -> bool:
        """The choice breaks its budget, measured quiet."""
        assert run.subnet is not None
        return not keeps(self.ratios[run.subnet], run.budget_ratio)

    @property
    def seeds(self) -> int:
        """Adaptations per budget and condition."""
        return len({one.seed for one in self.runs})

    @property
    def budget_ratios(self) -> list[float]:
        """The budgets, as shares of the full latency."""
        return list(dict.fromkeys(one.budget_ratio for one in self.runs))


def figures_of(judged: Sequence[JudgedNetwork], served: Iterable[Served]) -> dict[str, float]:
    """All figures but those of single networks' rows; one that cannot be computed is left out, and so misses."""
    runs = [(network, run) for network in judged for run in network.runs]
    chosen = [(network, run) for network, run in runs if run.subnet is not None]
    found = {
        "refused_runs": float(len(runs) - len(chosen)),
        **_worst("worst_below_ladder_points", [_worst_below_ladder(one) for one in judged]),
        **_worst("worst_below_best_seed_points", [_worst_below_best_seed(one) for one in judged]),
    }
    if chosen:
        found["over_budget_share"] = float(np.mean([network.over(run) for network, run in chosen]))
    calls = list(served)
    if calls:
        found["served_over_budget_share"] = float(np.mean([one.inner_over_share for one in calls]))
        found["served_over_budget_prepared_share"] = float(np.mean([one.over_share for one in calls]))
    return found


def trained_minus_untrained(trained: JudgedNetwork, untrained: JudgedNetwork) -> dict[str, float]:
    """The gain of training in points, the same budget, condition and seed compared, with its paired interval."""
    other = {(one.condition, one.budget_ratio, one.seed): one.subnet for one in untrained.runs}
    differences = []
    for run in trained.runs:
        rival = other.get((run.condition, run.budget_ratio, run.seed))
        if run.subnet is not None and rival is not None:
            differences.append(trained.right[run.subnet].astype(np.float64) - untrained.right[rival])
    return gain("trained_minus_untrained", differences)


def gain(name: str, differences: Sequence[npt.NDArray[np.float64]]) -> dict[str, float]:
    """The mean of paired differences in points, with its interval; ``differences``: of each comparison [samples]."""
    if not differences:
        return {}
    mean = np.mean(differences, axis=0)
    low, high = bootstrap_points(mean)
    return {f"{name}_points": 100 * float(mean.mean()), f"{name}_low_points": low, f"{name}_high_points": high}


def _worst(name: str, values: Iterable[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {name: max(known)} if known else {}


def _worst_below_ladder(network: JudgedNetwork) -> float | None:
    below = []
    for ratio in network.budget_ratios:
        best = network.best_rung(ratio)
        if best is not None:
            below += [network.below(best, run) for run in network.chosen(ratio)]
    return max(below, default=None)


def _worst_below_best_seed(network: JudgedNetwork) -> float | None:
    """Over all seeds of both conditions, against the best of them that is within the budget."""
    below = []
    for ratio in network.budget_ratios:
        chosen = network.chosen(ratio)
        kept = [one.subnet for one in chosen if one.subnet is not None and network.ratios[one.subnet] <= ratio]
        if kept:
            best = max(kept, key=lambda one: float(network.right[one].mean()))
            below += [network.below(best, run) for run in chosen]
    return max(below, default=None)


def rows_of(network: JudgedNetwork) -> list[dict[str, object]]:
    """A row for each budget and condition, and one for each rung that was judged."""
    rows: list[dict[str, object]] = []
    for ratio in network.budget_ratios:
        best = network.best_rung(ratio)
        for condition in dict.fromkeys(one.condition for one in network.runs):
            own = [one for one in network.runs if one.budget_ratio == ratio and one.condition == condition]
            rows.append(_row(network, ratio, condition, own, best))
    for rung in network.rungs:
        if rung in network.right:
            accuracy = 100 * float(network.right[rung].mean())
            rows.append(
                {"network": network.name, "what": "rung", "subnet": str(rung), "ratio": network.ratios[rung]}
                | {"accuracy": accuracy}
            )
    return rows


def _row(
    network: JudgedNetwork, ratio: float, condition: str, own: Sequence[Run], best: Subnet | None
) -> dict[str, object]:
    row: dict[str, object] = {"network": network.name, "what": f"within {ratio:g}, {condition}", "seeds": len(own)}
    chosen = [one.subnet for one in own if one.subnet is not None]
    row["refused"] = len(own) - len(chosen)
    if refusals := [one.refusal for one in own if one.subnet is None]:
        row["refusal"] = refusals[0]
    if chosen:
        accuracies = {one: 100 * float(network.right[one].mean()) for one in chosen}
        worst = min(accuracies, key=accuracies.__getitem__)
        row |= {
            "subnets": len(accuracies),
            "accuracy_mean": float(np.mean([accuracies[one] for one in chosen])),
            "accuracy_worst": accuracies[worst],
            "accuracy_best": max(accuracies.values()),
            "ratio_mean": float(np.mean([network.ratios[one] for one in chosen])),
            "ratio_most": max(network.ratios[one] for one in chosen),
            "worst_subnet": str(worst),
            "evaluated_mean": float(np.mean([one.evaluated for one in own if one.subnet is not None])),
            "seconds_mean": float(np.mean([one.seconds for one in own if one.subnet is not None])),
        }
    if best is not None:
        row |= {"best_rung": str(best), "best_rung_accuracy": 100 * float(network.right[best].mean())}
        if chosen:
            change = network.right[best].astype(np.float64) - network.right[worst]
            low, high = bootstrap_points(change)
            row |= {"worst_below_ladder_low_points": low, "worst_below_ladder_high_points": high}
    return row
