"""Early exits: mean latency with them over that without, at nearly equal accuracy, on ResNet-56."""

from __future__ import annotations

from benchmarks.support.exit_latency import EXIT_TARGETS, exit_early
from benchmarks.support.reference_bundles import package_pretrained
from pathweave.bench import BenchOptions, BenchOutcome

TARGETS = EXIT_TARGETS
MINUTES = 10.0  # of training, all of it for exits: there are no merged blocks


def run(options: BenchOptions) -> BenchOutcome:
    """Package with exits alone; calibrate on test.zip#calibration and #search, judge on #report."""
    made = package_pretrained(options, "resnet56_cifar10", train=True, max_span=1, minutes=MINUTES)
    part = exit_early(made, options)
    data = "cifar10/test.zip#report; exits trained on train.zip, calibrated on test.zip#calibration, #search"
    return BenchOutcome({**part.figures, "package_minutes": made.minutes}, part.rows, data=data)
