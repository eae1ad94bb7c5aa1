"""Predicted against measured latency of random subnets, and of composed subnets against ones exported in one piece."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.latency_model.whole import composed_over_whole
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import package_pretrained
from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.fitting import fit_line
from device_sdk.profiling.profile import Profile, profile
from device_sdk.profiling.stretches import Measured, Part, Timing, measure_parts
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.paths import sample_uniformly
from device_sdk.supernet.plan import Subnet

TARGETS = {
    "median_abs_error": Target(maximum=0.05),
    "p95_abs_error": Target(maximum=0.10),
    "deployed_over_monolithic": Target(maximum=1.05),
}
SUBNETS, QUICK_SUBNETS = 40, 10  # of each network, none of them used in the fit
ROUNDS, QUICK_ROUNDS = 60, 20  # before the profile is made, and again after it
SPARE = 30  # ResNet-20 has 149 subnets, 24 of which the fit uses
SEED = 2026


@dataclass(frozen=True)
class Compared:
    """Predicted and measured latencies of subnets that were not used in the fit."""

    network: str
    profile: Profile
    seconds: float
    subnets: list[Subnet]
    measured: list[tuple[Measured, Measured]]  # before and after the profile was made

    @property
    def measured_ms(self) -> list[float]:
        return [(before.latency.median_ms + after.latency.median_ms) / 2 for before, after in self.measured]

    @property
    def errors(self) -> np.ndarray:
        predict = self.profile.cost_model().latency_ms
        return np.array([predict(one) for one in self.subnets]) / self.measured_ms - 1

    @property
    def simpler_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the plain sum of blocks (AdaptiveNet §5.1), and of a line through the sums of the fitted subnets."""
        alone = {one.edge: one.cost.latency_ms for one in self.profile.edges}
        sums = np.array([sum(alone[edge] for edge in one.edges) for one in self.subnets])
        fitted = self.profile.fitted
        scale, offset_ms = fit_line([one.blocks_ms for one in fitted], [one.measured_ms for one in fitted])
        return sums / self.measured_ms - 1, (scale * sums + offset_ms) / self.measured_ms - 1

    @property
    def peak_errors(self) -> list[float]:
        predict = self.profile.cost_model().peak_bytes
        return [
            predict(subnet) / after.peak_bytes - 1
            for subnet, (_, after) in zip(self.subnets, self.measured, strict=True)
            if after.peak_bytes
        ]


def run(options: BenchOptions) -> BenchOutcome:
    """One thread, batch 1: ResNet-56 and ResNet-20, each with merged blocks; only ResNet-20 for ``--quick``.

    The targets are for the first of them; the other's errors stand beside it.
    """
    folders = {"resnet20" if options.quick else "resnet56": adapted_bundle(options)}
    if not options.quick:
        folders["resnet20"] = package_pretrained(options, "resnet20_cifar10", train=False).folder
    compared = [_compare(name, folder, options) for name, folder in folders.items()]
    whole = composed_over_whole(options)
    figures = {
        "median_abs_error": float(np.median(np.abs(compared[0].errors))),
        "p95_abs_error": float(np.percentile(np.abs(compared[0].errors), 95)),
        "deployed_over_monolithic": max(one.ratio for one in whole),
    }
    for one in compared:
        of_sum, of_line = (float(np.median(np.abs(errors))) for errors in one.simpler_errors)
        figures |= {
            f"median_abs_error_{one.network}": float(np.median(np.abs(one.errors))),
            f"p95_abs_error_{one.network}": float(np.percentile(np.abs(one.errors), 95)),
            f"median_abs_error_of_the_sum_{one.network}": of_sum,
            f"median_abs_error_of_the_line_{one.network}": of_line,
            f"median_abs_error_of_peaks_{one.network}": float(np.median(np.abs(one.peak_errors))),
            f"p95_abs_error_of_peaks_{one.network}": float(np.percentile(np.abs(one.peak_errors), 95)),
            f"profile_seconds_{one.network}": one.seconds,
        }
    rows = [row for one in compared for row in _rows(one)] + [one.row() for one in whole]
    return BenchOutcome(figures, rows, data="seeded inputs; the latency does not depend on them")


def _compare(network: str, folder: Path, options: BenchOptions) -> Compared:
    """Measure subnets before and after profiling, so that a steady drift of the machine cancels out."""
    bundle, runtime = Bundle.open(folder), OnnxRuntime(threads=1)
    count = QUICK_SUBNETS if options.quick else SUBNETS
    drawn = list(dict.fromkeys(sample_uniformly(bundle.supernet, count=8 * count, random=SplitMix64(SEED))))
    drawn = drawn[: count + SPARE]  # which of them the fit will use is only known afterwards
    parts = [Part.of(bundle, one.edges) for one in drawn]
    timing = Timing(rounds=QUICK_ROUNDS if options.quick else ROUNDS)
    with options.progress.task(f"measure {network}", 2.0) as task:
        before = measure_parts(Workspace(bundle, runtime), parts, timing, advance=task.advance)
        started = time.monotonic()
        made = profile(Workspace(bundle, runtime), progress=options.progress)
        seconds = time.monotonic() - started
        after = measure_parts(Workspace(bundle, runtime), parts, timing, advance=task.advance)
    used = {one.subnet for one in made.fitted}
    unseen = [index for index, one in enumerate(drawn) if one not in used][:count]
    measured = [(before[index], after[index]) for index in unseen]
    return Compared(network, made, seconds, [drawn[index] for index in unseen], measured)


def _rows(compared: Compared) -> list[dict[str, object]]:
    predict = compared.profile.cost_model()
    return [
        {
            "what": f"{compared.network} {number}",
            "subnet": str(subnet),
            "predicted_ms": predict.latency_ms(subnet),
            "measured_ms": measured_ms,
            "error": error,
            "before_ms": before.latency.median_ms,
            "after_ms": after.latency.median_ms,
            "p25_ms": after.latency.p25_ms,
            "p75_ms": after.latency.p75_ms,
            "p95_ms": after.latency.p95_ms,
            "predicted_peak_bytes": predict.peak_bytes(subnet),
            "measured_peak_bytes": after.peak_bytes,
        }
        for number, (subnet, measured_ms, error, (before, after)) in enumerate(
            zip(compared.subnets, compared.measured_ms, compared.errors, compared.measured, strict=True)
        )
    ]
