"""Trained: what training the added blocks is worth to a device, on EfficientNet-Lite0 in int8."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.lite import lite_bundle
from benchmarks.sure.adapting import adapt_once
from benchmarks.sure.bench import judged_network
from benchmarks.sure.figures import JudgedNetwork, gain, rows_of, trained_minus_untrained
from benchmarks.sure.networks import TRAINED, UNTRAINED, SureNetwork, photograph_samples
from pathweave import AdaptiveModel

TARGETS = {
    "trained_minus_untrained_points": Target(minimum=1.0),
    "trained_minus_untrained_low_points": Target(minimum=0.0),
    "trained_minus_rung_points": Target(minimum=0.0),
}
BUDGET_RATIOS = (0.45, 0.35, 0.25)
SEEDS, TIME_LIMIT_S = 3, 20.0


def run(options: BenchOptions) -> BenchOutcome:
    """Two bundles of one network, blocks trained (zoo/) and fitted in closed form, adapt on #search on a quiet machine.

    Each budget is a share of the full model's latency. ``trained_minus_rung_points``: over the best rung within the
    budget, found in hindsight on #report, which favours the rung. No prior of classes: accuracy is over all 1,000.
    """
    trained, untrained = (_judged(options, name) for name in (TRAINED, UNTRAINED))
    figures = trained_minus_untrained(trained, untrained) | _over_rungs(trained)
    table = [*rows_of(trained), *rows_of(untrained)]
    return BenchOutcome(figures, table, data="imagenette/val.zip: #search, judged on #report")


def _judged(options: BenchOptions, name: str) -> JudgedNetwork:
    folder = lite_bundle(options, 0, trained=name == TRAINED)
    private, report = (photograph_samples(options, folder, part) for part in ("search", "report"))
    network = SureNetwork(name, folder, private, report, 0.0, 1.0 if options.quick else TIME_LIMIT_S)
    state = Path(options.work_folder, name.replace(" ", "-"))
    seeds = 1 if options.quick else SEEDS
    runs = []
    with (
        AdaptiveModel.open(folder, state_folder=state) as model,
        options.progress.task(f"adapt {name}", seeds * len(BUDGET_RATIOS)) as task,
    ):
        model.profile()
        for seed in range(seeds):
            for ratio in BUDGET_RATIOS:
                runs.append(adapt_once(model, network, "idle", ratio, seed))
                task.advance()
    return judged_network(network, runs, BUDGET_RATIOS)


def _over_rungs(judged: JudgedNetwork) -> dict[str, float]:
    """Points over the best rung within the budget, mean over budgets and seeds, with the paired interval."""
    differences = []
    for ratio in judged.budget_ratios:
        rung = judged.best_rung(ratio)
        for one in judged.chosen(ratio):
            if rung is not None and one.subnet is not None:
                differences.append(judged.right[one.subnet].astype(np.float64) - judged.right[rung])
    return gain("trained_minus_rung", differences)
