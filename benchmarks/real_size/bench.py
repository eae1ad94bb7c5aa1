"""Real size: EfficientNet-Lite0 on photographs of 224 × 224 against smaller inputs, 8 bits, and both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.real_size import data
from benchmarks.real_size.duels import UNTRAINED, Duel, figures_of, row_of
from benchmarks.real_size.rivals import FULL, Rival, RivalName, best_rival, load_rivals
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import CHECKOUT
from benchmarks.support.judged import Loaded, Right, answered_rightly, measured_ratios
from benchmarks.support.subnets import load_subnet
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.chooser import Here, choose
from device_sdk.policies.confirmation import EQUAL_LATENCY
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.profiling.profile import profile
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan

RATIOS, QUICK_RATIOS = (0.8, 0.6, 0.45, 0.35, 0.25), (0.45,)
LARGEST_DROPS = {0.45: 3.0, 0.35: 8.0, 0.25: 15.0}  # of the untrained bundle below the full model, in points
SEARCH_S, QUICK_SEARCH_S = 20.0, 3.0
HOLDOUT_SHARE = 0.05  # #search is small, and #report judges
SEEDS, QUICK_SEEDS = 5, 1  # twenty would take two hours
MODES = {"fp32": ("fp32",), "int8": ("fp32", "int8")}


TARGETS = {
    **{f"gap_to_simple_high_{mode}_{ratio * 100:.0f}": Target(maximum=1.0) for mode in MODES for ratio in RATIOS},
    **{f"gain_over_simple_low_{mode}_points": Target(minimum=0.0) for mode in MODES},
    **{f"untrained_drop_high_{ratio * 100:.0f}_points": Target(maximum=drop) for ratio, drop in LARGEST_DROPS.items()},
    "over_budget_share": Target(maximum=0.02),
    "refused_runs": Target(maximum=0),
    "adapt_seconds": Target(maximum=45.0),
    "adapt_peak_mb": Target(maximum=600.0),
    "longer_search_gain_high_points": Target(maximum=1.0),
    "open_first_s": Target(maximum=2.0),
    "open_again_s": Target(maximum=0.2),
}

Asked = tuple[str, float, int]  # mode or UNTRAINED, budget ratio, seed
Model = RivalName | Asked


def run(options: BenchOptions) -> BenchOutcome:
    """Choose subnets on #search with ``adapt``; evaluate them and their rivals once on #report.

    1. choose for every mode, budget and seed, from the trained bundle and, in int8, from the untrained one; 2. export
    and quantise the rivals: EfficientNet-Lite0, Lite1 and Lite2 at all sizes, as far as their weights can be had;
    3. measure rivals and choices in one interleaved run; 4. judge those that are within the largest budget.
    """
    chosen: dict[Asked, Found] = {}
    models: dict[Model, Loaded] = {}
    for mode in (*MODES, UNTRAINED):
        for asked, one, loaded in _choices(options, mode):
            chosen[asked], models[asked] = one, loaded
    models |= dict(load_rivals(options))
    ratios = measured_ratios(models, FULL)
    most = max([max(RATIOS), *(ratios[one] for one in chosen)])
    compared = {name: one for name, one in models.items() if name == FULL or ratios[name] <= EQUAL_LATENCY * most}
    report = data.photographs(options, "report")
    preprocessing = Bundle.open(data.bundle(options, trained=False)).manifest.preprocessing.of_images()  # the family's
    right = answered_rightly(compared, report.inputs(preprocessing), report.labels)
    for model in models.values():
        model.session.close()
    rivals = [Rival(name, ratios[name], right[name]) for name in compared if isinstance(name, RivalName)]
    duels = [_duel(asked, one, ratios, right, rivals) for asked, one in chosen.items()]
    figures = {
        "full_accuracy": 100 * float(right[FULL].mean()),
        "seeds": float(QUICK_SEEDS if options.quick else SEEDS),
        "rivals": float(sum(isinstance(name, RivalName) for name in models)),
        "refused_runs": float(_asked_for(options) - len(chosen)),
        **figures_of(duels, right[FULL]),
        **_adapting(options, data.bundle(options, trained=True)),
    }
    return BenchOutcome(figures, [*(one.row() for one in rivals), *map(row_of, duels)], data="imagenette/val.zip")


def _ratios(options: BenchOptions, mode: str) -> Sequence[float]:
    return QUICK_RATIOS if options.quick else tuple(LARGEST_DROPS) if mode == UNTRAINED else RATIOS


def _asked_for(options: BenchOptions) -> int:
    return sum(len(_ratios(options, mode)) for mode in (*MODES, UNTRAINED)) * (QUICK_SEEDS if options.quick else SEEDS)


def _choices(options: BenchOptions, mode: str) -> Iterator[tuple[Asked, Found, Loaded]]:
    """Every budget with every seed, of one profile; refused ones are left out."""
    runtime, names = OnnxRuntime(threads=1), MODES.get(mode, MODES["int8"])
    folder = data.bundle(options, trained=mode != UNTRAINED)
    bundle = Bundle.open(folder, accepts=lambda one: one.runtime == "onnxruntime" and one.name in names)
    workspace, search = Workspace(bundle, runtime), data.photographs(options, "search")
    here = Here(workspace, profile(workspace, progress=options.progress), Plan(bundle.supernet.original))
    inputs = search.inputs(bundle.manifest.preprocessing.of_images())
    limit_s, seeds = (QUICK_SEARCH_S, QUICK_SEEDS) if options.quick else (SEARCH_S, SEEDS)
    for ratio in _ratios(options, mode):
        for seed in range(seeds):
            goal = Goal(latency_ratio=ratio)
            settings = AdaptationSettings(holdout_share=HOLDOUT_SHARE, time_limit_s=limit_s, seed=seed, use_prior=False)
            try:
                one = choose(
                    inputs, search.labels, goal, {"subnets"}, here, settings=settings, progress=options.progress
                )
            except InfeasibleBudgetError:
                continue
            yield (mode, ratio, seed), one, load_subnet(bundle, runtime, one.subnet)


def _duel(
    asked: Asked, chosen: Found, ratios: Mapping[Model, float], right: Mapping[Model, Right], rivals: list[Rival]
) -> Duel:
    """A choice over its budget meets rivals as slow as itself."""
    mode, budget_ratio, seed = asked
    rival = best_rival(rivals, max(budget_ratio, ratios[asked]), MODES.get(mode, MODES["int8"]))
    return Duel(mode, budget_ratio, seed, chosen, ratios[asked], right[asked], rival)


def _adapting(options: BenchOptions, folder: Path) -> dict[str, float]:
    """Time and memory of ``open`` and ``adapt``, in a separate process."""
    places = [str(path.resolve()) for path in (folder, options.data_folder)]
    command = [sys.executable, "-m", "benchmarks.real_size.adapt", *places, "0.45"]
    if options.quick:
        command.append("--quick")
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
