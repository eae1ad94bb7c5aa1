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
import numpy.typing as npt

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target, package_folder
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import load_part
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.policies.subnet_search import make_evaluator
from device_sdk.profiling.profile import Profile
from device_sdk.progress import SilentProgress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import Array, OnnxRuntime
from device_sdk.search import find_subnets, make_strategy
from device_sdk.search.port import SearchProblem, best_within
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.goal import Goal

TARGETS = {
    "adapt_seconds_over_python": Target(maximum=1.2),
    "call_over_raw": Target(maximum=1.10),
    "same_choices": Target(minimum=1.0),
}
IMAGES, QUICK_IMAGES = 500, 100
SEARCHED = 200  # images of the search that both languages must end alike; BenchCli.kt has the same
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
            rows.append({"side": "python", "adapt_seconds": found.seconds, "subnets_evaluated": found.considered})
            rows[-1] |= _searched(model.bundle, profile, model.prepare(images[:SEARCHED]), labels[:SEARCHED], limit_ms)
            rows.append({"side": "kotlin"} | _kotlin(java, folder, work, limit_ms, quick=options.quick))
    python = [row for row in rows if row["side"] == "python"]
    kotlin = [row for row in rows if row["side"] == "kotlin"]
    same = [
        all(one[name] == other[name] for name in ("best", "pool")) for one, other in zip(python, kotlin, strict=True)
    ]
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


def _searched(
    bundle: Bundle, profile: Profile, inputs: Array, labels: npt.NDArray[np.int64], limit_ms: float
) -> dict[str, object]:
    """The search alone: nothing in it is measured, so that both languages find the same."""
    costs, budget = profile.cost_model(), Budget(latency_ms=limit_ms)
    settings = AdaptationSettings(time_limit_s=None)
    evaluator = make_evaluator(Workspace(bundle, OnnxRuntime()), costs, settings, inputs, labels)
    try:
        problem = SearchProblem(
            bundle.supernet,
            costs,
            budget,
            evaluator,
            SplitMix64(0),
            clock=time.monotonic,
            progress=SilentProgress(),
            time_limit_s=None,
        )
        pool = find_subnets(make_strategy(settings.strategy), problem).pool
    finally:
        evaluator.close()
    best = best_within(pool, budget)
    return {"best": str(best.subnet if best else None), "pool": len(pool)}


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
