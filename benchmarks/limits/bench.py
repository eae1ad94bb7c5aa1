"""Limits: minutes and memory of packaging against what was allowed, and accuracy by range of cost after training."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.limits.shared_paths import RangeChange, changes
from benchmarks.real_size.photographs import load_photographs
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import CHECKOUT
from benchmarks.support.peers import load_samples
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.inputs import PreparedInputs

TARGETS = {
    "minutes_over_budget": Target(maximum=1.15),
    "package_peak_gb": Target(maximum=4.0),
    "ranges_worse": Target(maximum=0.0),
}
MEMORY_GB = 4.0
_SAMPLES = 200
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
    _Run("ResNet-56", ("--model", "zoo:resnet56_cifar10"), "resnet56_cifar10", *_CIFAR, 5.0),
    _Run("EfficientNet-Lite0", _LITE0, "efficientnet_lite0_imagenet", *_PHOTOGRAPHS, 12.0),
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
            table.append(_row(wanted, before, after, _changes(wanted, before, after, options)))
    figures = {name: max(float(str(row[name])) for row in table) for name in ("minutes_over_budget", "package_peak_gb")}
    figures["ranges_worse"] = float(sum(int(str(row["ranges_worse"])) for row in table))
    return BenchOutcome(figures, table, data="imagenette/val.zip#search and cifar10/test.zip#search")


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


def _changes(wanted: _Run, before: _Packaged, after: _Packaged, options: BenchOptions) -> list[RangeChange]:
    """Judged on samples that neither training nor its selection of states has seen."""
    if wanted.training == _CIFAR[0]:
        cifar = load_samples(options, "search")
        return changes(before.folder, after.folder, PreparedInputs(cifar.inputs[:_SAMPLES]), cifar.labels[:_SAMPLES])
    found = load_photographs(options.data_folder, ("search",), limit=_SAMPLES)
    preprocessing = Bundle.open(after.folder).manifest.preprocessing.of_images()
    return changes(before.folder, after.folder, found.inputs(preprocessing), found.labels)


def _row(wanted: _Run, before: _Packaged, after: _Packaged, ranges: Sequence[RangeChange]) -> dict[str, object]:
    if not ranges:
        raise RuntimeError(f"the bundles of {wanted.name} with and without training share no trainable block")
    return {
        "model": wanted.name,
        "budget_minutes": wanted.minutes,
        "minutes": after.minutes,
        "minutes_over_budget": after.minutes / wanted.minutes,
        "minutes_without_training": before.minutes,
        "package_peak_gb": max(before.peak_gb, after.peak_gb),
        "ranges": [f"{one.low:.2f} to {one.high:.2f}" for one in ranges],
        "ranges_worse": sum(one.is_worse for one in ranges),
        "accuracy_before": [round(100 * float(one.before.mean()), 1) for one in ranges],
        "accuracy_after": [round(100 * float(one.after.mean()), 1) for one in ranges],
    }
