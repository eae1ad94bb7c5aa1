"""Early exits: what they save by confidence, and the accuracy that they have when time is up.

By confidence, ResNet-56: mean latency with exits over that without, at nearly equal accuracy; what temperature scaling
per exit brings, and a bound of what joint training could. When time is up, ResNet-56 and EfficientNet-Lite0: the mean
accuracy expectation (mAE, MEEdge §4.1) of the exits that fit a memory budget, by latencies measured here, for three
distributions of the time, against sets of exits of one structure, trained here for as many steps on the same batches.
Exits are placed by #calibration, judged on #report; those of EfficientNet-Lite0, trained on photographs of ten classes,
among these ten.
"""

from __future__ import annotations

from benchmarks.exits.bounds import bounds
from benchmarks.exits.mean_accuracy import FIGURE_TARGETS, compare
from benchmarks.exits.networks import LITE0, RESNET56
from benchmarks.exits.sets import rival_bundle, zoo_bundle
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.exit_latency import EXIT_TARGETS, exit_early

TARGETS = EXIT_TARGETS | FIGURE_TARGETS | {"exit_latency_ratio": Target(maximum=0.80)}


def run(options: BenchOptions) -> BenchOutcome:
    """The zoo's exits come from zoo/; those of the rivals are trained here."""
    made = zoo_bundle(options, RESNET56)
    parts = [
        exit_early(made, options),
        bounds(options, RESNET56, made),
        compare(options, RESNET56, made, rival_bundle(options, RESNET56)),
        compare(options, LITE0, zoo_bundle(options, LITE0), rival_bundle(options, LITE0)),
    ]
    figures = {name: value for part in parts for name, value in part.figures.items()}
    data = "cifar10/test.zip#report, imagenette/val.zip#report; chosen on #calibration, thresholds on #search too"
    return BenchOutcome(figures, [row for part in parts for row in part.rows], data=data)
