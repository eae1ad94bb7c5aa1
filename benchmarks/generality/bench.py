"""Generality: conversion to supernets of torchvision's families, timm models, ten at 224 × 224, one on tokens."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.generality.models import MODELS, QUICK_MODELS, REAL_SIDE
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import CHECKOUT

SECONDS, GIGABYTES = 180.0, 8.0
TARGETS = {
    "models_passed_ratio": Target(minimum=1.0),
    "slowest_seconds": Target(maximum=SECONDS),
    "most_gb": Target(maximum=GIGABYTES),
}
_LAST_LINE = -1


def run(options: BenchOptions) -> BenchOutcome:
    """Elasticize each model in a separate process, without training, and run random subnets of it."""
    names = QUICK_MODELS if options.quick else tuple(MODELS)
    table = []
    with options.progress.task("generality", len(names)) as task:
        for name in names:
            table.append(_checked(name))
            task.note(name)
            task.advance()
    figures = {
        "models_total": float(len(table)),
        "models_passed_ratio": sum(bool(row["passed"]) for row in table) / len(table),
        "slowest_seconds": max(float(str(row.get("seconds", SECONDS))) for row in table),
        "most_gb": max(float(str(row.get("peak_gb", 0.0))) for row in table),
    }
    real = [row for row in table if str(row["model"]).endswith(f" at {REAL_SIDE}")]
    if real:
        figures["real_size_slowest_minutes"] = max(float(str(row.get("minutes", SECONDS / 60))) for row in real)
        figures["real_size_most_gb"] = max(float(str(row.get("peak_gb", 0.0))) for row in real)
        figures["real_size_most_mb"] = max(float(str(row.get("fragments_mb", 0.0))) for row in real)
    return BenchOutcome(figures, table, data="random weights and inputs")


def _checked(name: str) -> dict[str, object]:
    """A row of the table, with the reason if it failed."""
    command = [sys.executable, "-m", "benchmarks.generality.check", name]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        return {"model": name, "passed": False, "failure": f"took more than {2 * SECONDS:.0f} s"}
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()] or ["it died"]
        return {"model": name, "passed": False, "failure": last[_LAST_LINE][:300]}
    row: dict[str, object] = json.loads(done.stdout.splitlines()[_LAST_LINE])
    if float(str(row["seconds"])) > SECONDS or float(str(row["peak_gb"])) > GIGABYTES:
        row["passed"] = False
    return row
