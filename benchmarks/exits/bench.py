"""Early exits of ResNet-56: what they save by confidence, and the accuracy that they have when time is up.

By confidence: mean latency with exits over that without, at nearly equal accuracy. When time is up: the mean accuracy
expectation (mAE, MEEdge §4.1) of the exits that fit a memory budget, by latencies measured here, for three
distributions of the time, against sets of exits of one structure. Exits are placed by #calibration, judged on #report.
"""

from __future__ import annotations

from benchmarks.exits.mean_accuracy import FIGURE_TARGETS, compare
from benchmarks.exits.sets import rival_bundles, zoo_bundle
from benchmarks.support.exit_latency import EXIT_TARGETS, exit_early
from pathweave.bench import BenchOptions, BenchOutcome

TARGETS = EXIT_TARGETS | FIGURE_TARGETS


def run(options: BenchOptions) -> BenchOutcome:
    """The zoo's exits come from zoo/; those of the rivals are trained here."""
    made = zoo_bundle(options)
    early = exit_early(made, options)
    compared = compare(options, made, rival_bundles(options))
    figures = {**early.figures, **compared.figures}
    data = "cifar10/test.zip#report; zoo/ and rivals trained on train.zip, chosen on test.zip#calibration, #search"
    return BenchOutcome(figures, [*compared.rows, *early.rows], data=data)
