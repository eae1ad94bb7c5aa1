"""Choices against the best simple alternatives of their latency: gaps with intervals over the photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.real_size.rivals import Rival
from benchmarks.support.judged import Right
from benchmarks.support.paired import bootstrap_points
from device_sdk.policies.confirmation import EQUAL_LATENCY
from device_sdk.policies.found import Found

UNTRAINED = "untrained"

Change = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Duel:
    """A choice within a budget, its latency and correctness, and the best rival of at most its latency."""

    mode: str
    budget_ratio: float
    seed: int
    chosen: Found
    ratio: float
    right: Right
    rival: Rival | None

    @property
    def gap(self) -> Change:
        """Rival's correctness minus the choice's on each photograph, −1 to 1: [count]."""
        assert self.rival is not None
        return self.rival.right.astype(np.float64) - self.right


def figures_of(duels: Sequence[Duel], full: Right) -> dict[str, float]:
    """Gaps and gains are means over seeds; ``…_high…`` and ``…_low…`` are bounds of their 95 % bootstrap intervals."""
    figures = {"over_budget_share": float(np.mean([one.ratio > EQUAL_LATENCY * one.budget_ratio for one in duels]))}
    for mode in dict.fromkeys(one.mode for one in duels):
        of = [one for one in duels if one.mode == mode]
        for ratio in dict.fromkeys(one.budget_ratio for one in of):
            same, percent = [one for one in of if one.budget_ratio == ratio], f"{ratio * 100:.0f}"
            if mode == UNTRAINED:
                drop = np.mean([full.astype(np.float64) - one.right for one in same], axis=0)
                figures[f"untrained_drop_{percent}_points"] = 100 * float(drop.mean())
                figures[f"untrained_drop_high_{percent}_points"] = bootstrap_points(drop)[1]
            elif gaps := [one.gap for one in same if one.rival is not None]:
                gap = np.mean(gaps, axis=0)
                figures[f"gap_to_simple_{mode}_{percent}"] = 100 * float(gap.mean())
                figures[f"gap_to_simple_high_{mode}_{percent}"] = bootstrap_points(gap)[1]
                figures[f"gap_to_simple_worst_{mode}_{percent}"] = 100 * max(float(one.mean()) for one in gaps)
        if mode != UNTRAINED and (gaps := [one.gap for one in of if one.rival is not None]):
            gain = -np.mean(gaps, axis=0)
            figures[f"gain_over_simple_{mode}_points"] = 100 * float(gain.mean())
            figures[f"gain_over_simple_low_{mode}_points"] = bootstrap_points(gain)[0]
    return figures


def row_of(duel: Duel) -> dict[str, object]:
    """A row of the table."""
    row: dict[str, object] = {
        "what": f"{duel.mode} within {duel.budget_ratio:g}",
        "seed": duel.seed,
        "subnet": str(duel.chosen.subnet),
        "ratio": duel.ratio,
        "accuracy": 100 * float(duel.right.mean()),
        "subnets_evaluated": duel.chosen.considered,
        "search_seconds": duel.chosen.seconds,
    }
    if duel.rival is None:
        return row
    low, high = bootstrap_points(duel.gap)
    simple = {"simple": str(duel.rival.name), "simple_ratio": duel.rival.ratio}
    accuracy = {"simple_accuracy": 100 * float(duel.rival.right.mean()), "gap_points": 100 * float(duel.gap.mean())}
    return row | simple | accuracy | {"gap_low_points": low, "gap_high_points": high}
