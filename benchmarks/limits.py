"""Limits: minutes and memory of packaging against what was allowed, and accuracy by range of cost after training."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.bundles import CHECKOUT
from device_sdk.bundles.bundle import Bundle
from pathweave.bench import BenchOptions, BenchOutcome, Target

TARGETS = {
    "minutes_over_budget": Target(maximum=1.15),
    "package_peak_gb": Target(maximum=4.0),
    "ranges_worse": Target(maximum=0.0),
}
MEMORY_GB = 4.0
_ERRORS = 1.0  # standard errors of an accuracy: losses within are chance
_LITE0 = (
    *("--model", "timm:tf_efficientnet_lite0", "--classes", "imagenet-1k", "--crop", "whole"),
    *("--interpolation", "bicubic"),
)


@dataclass(frozen=True)
class _Run:
    """A network, the minutes that it is packaged for, and its data."""

    name: str
    model: tuple[str, ...]
    weights: str
    training: str
    validation: str
    minutes: float


_CIFAR = ("cifar10/train.zip", "cifar10/test.zip#calibration")
_PHOTOGRAPHS = ("imagenette/train.zip", "imagenette/val.zip#calibration")
RUNS = (
    _Run("ResNet-20", ("--model", "zoo:resnet20_cifar10"), "resnet20_cifar10", *_CIFAR, 1.0),
    _Run("ResNet-56", ("--model", "zoo:resnet56_cifar10"), "resnet56_cifar10", *_CIFAR, 2.0),
    _Run("EfficientNet-Lite0", _LITE0, "efficientnet_lite0_imagenet", *_PHOTOGRAPHS, 5.0),
)


def run(options: BenchOptions) -> BenchOutcome:
    """Each network is packaged in a process of its own, without training and within its minutes."""
    table: list[dict[str, object]] = []
    runs = RUNS[:1] if options.quick else RUNS
    with options.progress.task("package", 2 * len(runs)) as task:
        for number, wanted in enumerate(runs):
            task.note(wanted.name)
            before = _packaged(wanted, options, options.work_folder / f"{number}-before", ("--steps", "0"))
            task.advance()
            limit = ("--budget-minutes", str(wanted.minutes))
            after = _packaged(wanted, options, options.work_folder / f"{number}-after", limit)
            task.advance()
            table.append(_row(wanted, before, after))
    figures = {
        "minutes_over_budget": max(float(str(row["minutes_over_budget"])) for row in table),
        "package_peak_gb": max(float(str(row["peak_gb"])) for row in table),
        "ranges_worse": _worse(table),
    }
    return BenchOutcome(figures, table, data="imagenette/val.zip#calibration and cifar10/test.zip#calibration")


def _worse(table: Sequence[Mapping[str, object]]) -> float:
    """Ranges that lost accuracy; not a number where a network has no range in both bundles, whose blocks may differ."""
    if any(not row["ranges"] for row in table):
        return float("nan")
    return float(sum(int(str(row["ranges_worse"])) for row in table))


@dataclass(frozen=True)
class _Packaged:
    folder: Path
    minutes: float
    peak_gb: float


def _packaged(wanted: _Run, options: BenchOptions, out: Path, limit: tuple[str, ...]) -> _Packaged:
    """Run ``pathweave package``; its wall time and the peak of its memory."""
    data = options.data_folder.resolve()
    weights = data / "pretrained" / f"{wanted.weights}.safetensors"
    command = [sys.executable, "-m", "pathweave", "package", *wanted.model, "--weights", str(weights)]
    command += ["--data", str(data / wanted.training), "--val", str(data / wanted.validation), "--out", str(out)]
    command += ["--memory-gb", str(MEMORY_GB), "--exits", "0", "--json", *limit]
    started = time.monotonic()
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"packaging {wanted.name} failed: {said[-500:]}")
    return _Packaged(out, (time.monotonic() - started) / 60, usage.ru_maxrss * 1024 / 1e9)


def _row(wanted: _Run, before: _Packaged, after: _Packaged) -> dict[str, object]:
    first, last = (Bundle.open(one.folder).manifest.metrics for one in (before, after))
    start = {(one.macs_ratio_low, one.macs_ratio_high): one for one in first.range_accuracy}
    pairs = [
        (start[one.macs_ratio_low, one.macs_ratio_high], one)
        for one in last.range_accuracy
        if (one.macs_ratio_low, one.macs_ratio_high) in start
    ]
    worse = [
        old
        for old, new in pairs
        if new.accuracy < old.accuracy - _ERRORS * (old.accuracy * (1 - old.accuracy) / last.samples) ** 0.5
    ]
    return {
        "model": wanted.name,
        "budget_minutes": wanted.minutes,
        "minutes": after.minutes,
        "minutes_over_budget": after.minutes / wanted.minutes,
        "minutes_without_training": before.minutes,
        "peak_gb": max(before.peak_gb, after.peak_gb),
        "ranges": len(pairs),
        "ranges_worse": len(worse),
        "mean_range_accuracy_before": 100 * sum(old.accuracy for old, _ in pairs) / max(1, len(pairs)),
        "mean_range_accuracy_after": 100 * sum(new.accuracy for _, new in pairs) / max(1, len(pairs)),
    }
