"""Kotlin's SDK against Python's: adapting, opening and calls, on the same bundle, profile and images."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target, package_folder
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import load_part
from device_sdk.errors import UsageError
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.search.port import best_within
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal

TARGETS = {
    "adapt_seconds_over_python": Target(maximum=1.2),
    "call_over_raw": Target(maximum=1.10),
    "same_choices": Target(minimum=1.0),
}
IMAGES, QUICK_IMAGES = 500, 100
RATIO = 0.6  # the budget, of the full model's latency
REPEATS, QUICK_REPEATS = 2, 1
ROUNDS, QUICK_ROUNDS = 400, 40
OPENINGS = 7
_MAIN = "pathweave.sdk.commands.BenchCliKt"


def run(options: BenchOptions) -> BenchOutcome:
    """Python and Kotlin in turns, each Kotlin run in a virtual machine of its own, cold; one thread, no time limit."""
    java = _java()
    folder, work = adapted_bundle(options), options.work_folder
    rows: list[dict[str, object]] = []
    with AdaptiveModel.open(folder, state_folder=work / "state") as model:
        part = load_part(options, "search", model)
        count = QUICK_IMAGES if options.quick else IMAGES
        images, labels = part.images[:count], part.labels[:count]
        profile = model.profile(progress=options.progress)
        (work / "profile.json").write_bytes(msgspec.json.encode(profile))
        (work / "images").write_bytes(images.tobytes())
        (work / "labels").write_bytes(labels.astype(np.uint8).tobytes())
        limit_ms, settings = RATIO * profile.original_ms, AdaptationSettings(time_limit_s=None)
        opened_ms = _opened_ms(folder, work)
        for _ in range(QUICK_REPEATS if options.quick else REPEATS):
            found = model.adapt(images, Goal(latency_ms=limit_ms), labels=labels, settings=settings)
            best = best_within(found.pool, found.goal.budget())
            assert best is not None
            rows.append({"side": "python", "adapt_seconds": found.seconds, "best": str(best.subnet)})
            rows[-1] |= {"subnets_evaluated": found.considered, "pool": len(found.pool)}
            rows.append({"side": "kotlin"} | _kotlin(java, folder, work, limit_ms, quick=options.quick))
    python = [row for row in rows if row["side"] == "python"]
    kotlin = [row for row in rows if row["side"] == "kotlin"]
    compared = ("best", "subnets_evaluated", "pool")
    same = [all(one[name] == other[name] for name in compared) for one, other in zip(python, kotlin, strict=True)]
    figures = {
        "adapt_seconds_over_python": _median(kotlin, "adapt_seconds") / _median(python, "adapt_seconds"),
        "adapt_seconds": _median(kotlin, "adapt_seconds"),
        "call_over_raw": statistics.median(_number(row, "call_ms") / _number(row, "raw_ms") for row in kotlin),
        "block_ms_over_python": _median(kotlin, "block_ms_over_python"),
        "open_ms_over_python": _median(kotlin, "open_ms") / opened_ms,
        "open_ms": _median(kotlin, "open_ms"),
        "first_open_ms": _median(kotlin, "first_open_ms"),
        "same_choices": sum(same) / len(same),
    }
    return BenchOutcome(figures, rows, data=f"{count} images of cifar10/test.zip#search")


def _java() -> list[str]:
    """The command that runs the compiled core."""
    core = package_folder("pathweave").parent / "android_demo" / "core" / "target"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None or not (core / "classpath.txt").exists():
        raise UsageError(
            "the Kotlin core is not compiled here", hint="install a JDK and Maven, then: make test-android"
        )
    return [
        java,
        "-cp",
        f"{core / 'test-classes'}:{core / 'classes'}:{(core / 'classpath.txt').read_text().strip()}",
        _MAIN,
    ]


def _kotlin(java: list[str], folder: Path, work: Path, limit_ms: float, *, quick: bool) -> dict[str, object]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    files = [str(work / name) for name in ("images", "labels", "profile.json")]
    command = [*java, str(folder), *files, repr(limit_ms), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise UsageError(f"Kotlin's run failed: {done.stderr.strip().splitlines()[-1] if done.stderr else 'no reason'}")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def _opened_ms(folder: Path, work: Path) -> float:
    """The median time to open the bundle in Python, whose self-test has passed."""
    times = []
    for _ in range(OPENINGS):
        started = time.perf_counter()
        AdaptiveModel.open(folder, state_folder=work / "state").close()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times[1:])


def _median(rows: list[dict[str, object]], name: str) -> float:
    return statistics.median(_number(row, name) for row in rows)


def _number(row: dict[str, object], name: str) -> float:
    value = row[name]
    assert isinstance(value, float | int)
    return float(value)
