"""Threads: the homes that adaptation chooses against every fixed number of threads, idle and with one core busy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.lite import lite_bundle
from benchmarks.sure.judging import Judge
from benchmarks.sure.networks import Samples, photograph_samples
from benchmarks.threads.adapting import CONDITIONS, Choice, Models, opened, threads_of, without_homes
from benchmarks.threads.figures import Cell, figures_of, rows_of
from device_sdk.bundles.bundle import Bundle
from device_sdk.machine import usable_cores
from device_sdk.machine.clusters import thread_counts
from device_sdk.profiling.timing import Latency, Ratio
from device_sdk.runtimes import runs_on
from device_sdk.supernet.plan import Subnet

TARGETS = {
    "worst_over_best_fixed": Target(maximum=1.05),
    "refused_runs": Target(maximum=0.0),
    "cells": Target(minimum=6.0),
}
BUDGET_RATIOS, QUICK_BUDGET_RATIOS = (1.0, 0.5, 0.3), (0.5,)
TIME_LIMIT_S, QUICK_TIME_LIMIT_S = 3.0, 1.0
Found = tuple[str, float, Choice, dict[str, Latency]]


def run(options: BenchOptions) -> BenchOutcome:
    """EfficientNet-Lite0, untrained, on photographs; subnets are chosen on #search and judged once on #report.

    In each condition: 1. profile with the homes free and at each fixed number of threads; 2. adapt all alike to each
    budget; 3. time what was chosen in turns: the free plan, its subnet at each fixed number of threads, and what these
    chose. At the end, 4. judge what was chosen.

    ``worst_over_best_fixed``: latency of the free plan over that of its subnet at the best fixed number of threads in
    hindsight, the upper bound of its 95 % interval, in the worst cell. ``worst_below_fixed_points``: by which the best
    choice of a fixed number of threads is more accurate than the free one.
    """
    folder = lite_bundle(options, 0)
    threads = thread_counts(usable_cores())
    ratios = QUICK_BUDGET_RATIOS if options.quick else BUDGET_RATIOS
    private = photograph_samples(options, folder, "search")
    found: list[Found] = []
    refused = 0
    for condition, burning in CONDITIONS.items():
        with opened(folder, options.work_folder / condition, threads) as models, burning():
            models.profile()
            with options.progress.task(condition, len(ratios)) as task:
                for ratio in ratios:
                    one = _cell(models, private, options, condition, ratio)
                    refused += one is None
                    found += [] if one is None else [one]
                    task.advance()
    accuracy = _accuracies(options, found)
    cells = [_judged(one, accuracy) for one in found]
    return BenchOutcome(
        figures_of(cells, refused=refused), rows_of(cells), data="imagenette/val.zip: #search, judged on #report"
    )


def _cell(models: Models, private: Samples, options: BenchOptions, condition: str, ratio: float) -> Found | None:
    limit_s = QUICK_TIME_LIMIT_S if options.quick else TIME_LIMIT_S
    choice = models.adapt(ratio, private, limit_s)
    return None if choice is None else (condition, ratio, choice, models.in_turns(choice, private.images[0]))


def _accuracies(options: BenchOptions, found: list[Found]) -> dict[str, float]:
    """Accuracies on #report by subnet: a home changes no answer beyond rounding."""
    folder = lite_bundle(options, 0)
    chosen = {without_homes(choice.free) for _, _, choice, _ in found}
    chosen |= {without_homes(one) for _, _, choice, _ in found for one in choice.fixed.values() if one is not None}
    judge = Judge(Bundle.open(folder, accepts=runs_on("onnxruntime")))
    try:
        right = judge.right(sorted(chosen, key=str), photograph_samples(options, folder, "report"))
    finally:
        judge.close()
    return {str(subnet): float(one.mean()) for subnet, one in right.items()}


def _judged(found: Found, accuracy: dict[str, float]) -> Cell:
    condition, ratio, choice, timed = found
    fixed = {count: None if one is None else accuracy[str(without_homes(one))] for count, one in choice.fixed.items()}
    return Cell(
        condition=condition,
        budget_ratio=ratio,
        budget_ms=choice.budget_ms,
        subnet=str(choice.free),
        latency_ms=timed["free"].median_ms,
        over_fixed=_over_fixed(choice.free, timed, list(choice.fixed)),
        accuracy=accuracy[str(without_homes(choice.free))],
        fixed_accuracy=fixed,
        fixed_ms={count: timed[f"fixed {count}"].median_ms for count, one in choice.fixed.items() if one is not None},
    )


def _over_fixed(free: Subnet, timed: Mapping[str, Latency], counts: Sequence[int]) -> dict[int, Ratio]:
    """The free plan's latency over its subnet's at each number of threads.

    A plan of which all blocks are at one number of threads is its subnet at that number, the same program: it was
    measured twice, and both measurements count.
    """
    own = threads_of(free)
    over = {count: _inverse(timed[f"same {count}"].ratio) for count in counts}
    if own not in over:
        return over
    twice = over[own]
    return {
        count: Ratio(1.0, 0.0)
        if count == own
        else Ratio(ratio.value / math.sqrt(twice.value), math.hypot(ratio.relative_error, twice.relative_error / 2))
        for count, ratio in over.items()
    }


def _inverse(ratio: Ratio | None) -> Ratio:
    """The free plan's latency over another one's, from the other one's over the free plan's."""
    assert ratio is not None
    return Ratio(1 / ratio.value, ratio.relative_error)
