"""Supernets of the same network made in other ways, each trained equally long: what every part of the recipe is worth.

AdaptiveNet Fig. 10 compares distillation alone, tuning alone and both; LegoDNN prunes blocks and retrains each alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import packaging_cost, variant_bundle
from benchmarks.support.choice import Chooser
from benchmarks.support.peers import Samples

MINUTES = 8.0  # of training, each
BATCH, TUNE_RATE = 32, 4e-3  # minutes on a processor are few images: small batches make more updates of them
_TRAINED = {"batch": BATCH, "distil_rate": 1e-3, "tune_rate": TUNE_RATE, "exit_positions": 0}
# Merged and shrunk blocks, but none that keep a quarter: three of those are fewer operations than the block that merges
# them, and it is the path of fewest operations that tuning trains most. Tuning alone has to reach all blocks.
# Distilled for 0.7 of the minutes only, shrunk blocks were behind those of pruning alone, which distils throughout.
_BLOCKS = {"max_span": 3, "tiled": True, "shrink_rates": [0.75, 0.5], "variants": 1}
RECIPES: Mapping[str, Mapping[str, object]] = {
    "both": {**_BLOCKS, **_TRAINED, "sampling": "cheapest", "distil_share": 0.9},
    "tune only": {**_BLOCKS, **_TRAINED, "sampling": "sandwich", "distil_share": 0.0},
    "distil only": {**_BLOCKS, **_TRAINED, "distil_share": 1.0},
    "pruning only": {"max_span": 1, "shrink_rates": [0.75, 0.5, 0.25], **_TRAINED, "distil_share": 1.0},
}
_CANDIDATES = 3
_ROUNDS, _QUICK_ROUNDS = 80, 10
_SECONDS, _QUICK_SECONDS = 15.0, 1.0  # a search
_ABOVE_CHEAPEST, _HIGHEST = 1.05, 0.95  # the budgets, of the cheapest path's and of the full model's latency


@dataclass(frozen=True)
class Curve:
    """One supernet's best subnets at the same budgets: their accuracies on #report in percent, None where none fits.

    ``rows``: what packaging it took, then a row for each budget.
    """

    name: str
    accuracies: tuple[float | None, ...]
    rows: tuple[dict[str, object], ...]


def trained_variant(options: BenchOptions, name: str) -> Path:
    """The bundle of one of ``RECIPES``, trained now if it was not yet."""
    return variant_bundle(options, name.replace(" ", "-"), RECIPES[name], minutes=MINUTES)


def curves(
    options: BenchOptions, names: Sequence[str], search: Samples, report: Samples, *, budgets: int
) -> list[Curve]:
    """The supernets' curves over budgets from the cheapest path of the first of them up to almost the full model.

    Subnets are chosen on #search within each budget, confirmed by measuring, and looked at once on #report.
    """
    folders = {name: trained_variant(options, name) for name in names}
    found: list[Curve] = []
    ratios: list[float] = []
    with options.progress.task("variants", len(names)) as task:
        for name, folder in folders.items():
            chooser = Chooser(folder, search, options.progress)
            try:
                if not ratios:
                    lowest = _ABOVE_CHEAPEST * chooser.cheapest_ratio(rounds=_rounds(options))
                    ratios = np.linspace(lowest, _HIGHEST, budgets).tolist()
                found.append(_curve(name, folder, chooser, ratios, report, options))
            finally:
                chooser.close()
            task.advance()
    return found


def _curve(
    name: str, folder: Path, chooser: Chooser, ratios: Sequence[float], report: Samples, options: BenchOptions
) -> Curve:
    rows: list[dict[str, object]] = [{"what": name, **packaging_cost(folder)}]
    accuracies: list[float | None] = []
    for ratio in ratios:
        seconds = _QUICK_SECONDS if options.quick else _SECONDS
        chosen = chooser.best(ratio, None, count=_CANDIDATES, rounds=_rounds(options), time_limit_s=seconds)
        right = None if chosen is None else chooser.right(chosen.candidate.subnet, report)
        accuracies.append(None if right is None else 100 * float(right.mean()))
        row: dict[str, object] = {"what": name, "budget_ratio": ratio, "accuracy": accuracies[-1]}
        if chosen is not None:
            row |= {"subnet": str(chosen.candidate.subnet), "subnet_ratio": chosen.ratio}
        rows.append(row)
    return Curve(name, tuple(accuracies), tuple(rows))


def _rounds(options: BenchOptions) -> int:
    return _QUICK_ROUNDS if options.quick else _ROUNDS


def wins(own: Curve, other: Curve) -> float:
    """The share of budgets at which ``own`` is more accurate; one at which only it has a subnet is won."""
    pairs = list(zip(own.accuracies, other.accuracies, strict=True))
    return sum(a is not None and (b is None or a > b) for a, b in pairs) / len(pairs)
