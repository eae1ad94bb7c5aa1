"""Ablation: distillation alone, tuning alone and both, trained equally long (AdaptiveNet Fig. 10)."""

from __future__ import annotations

import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.peers import load_samples
from benchmarks.support.variants import Curve, curves

TARGETS = {"both_over_best_single_points": Target(minimum=0.0)}
BUDGETS, QUICK_BUDGETS = 6, 2  # of latency, as many as the figure has ranges
_SINGLE = ("tune only", "distil only")


def run(options: BenchOptions) -> BenchOutcome:
    """Mean accuracy over the budgets of subnets chosen on #search and looked at once on #report."""
    search, report = (load_samples(options, part) for part in ("search", "report"))
    budgets = QUICK_BUDGETS if options.quick else BUDGETS
    found = curves(options, ["both", *_SINGLE], search, report, budgets=budgets)
    means = {curve.name: _mean(curve) for curve in found}
    figures = {f"{name.replace(' ', '_')}_accuracy": mean for name, mean in means.items()}
    figures["both_over_best_single_points"] = means["both"] - max(means[name] for name in _SINGLE)
    table = [row for curve in found for row in curve.rows]
    return BenchOutcome(figures, table, data="chosen on cifar10/test.zip#search, judged on #report")


def _mean(curve: Curve) -> float:
    """Not a number where a budget has no subnet: all three have the same blocks, so that all fit or none."""
    return float(np.mean([float("nan") if one is None else one for one in curve.accuracies]))
