"""Live update: time until the latency budget is met again after a burner takes half of the core."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import CHECKOUT, adapted_bundle
from benchmarks.support.reference_bundles import load_part
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.progress import Task
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal

TARGETS = {
    "recover_p95_s": Target(maximum=1.0),
    "up_p95_s": Target(maximum=2.0),
    "calm_on_best": Target(minimum=0.95),
    "failed": Target(maximum=0),
    "wrong": Target(maximum=0),
    "swap_p95_ms": Target(maximum=1.0),
}
LATENCY_RATIO = 0.8  # budget of the adaptation, of the full model's latency
CYCLES, QUICK_CYCLES = 10, 2
CROWD_CYCLES, QUICK_CROWD_CYCLES = 3, 1
INPUTS = 16
LIMIT_S = 240.0


def run(options: BenchOptions) -> BenchOutcome:
    """Adapt here, then measure in a process that is pinned to one core, with the pool that was stored."""
    folder, state = adapted_bundle(options), options.work_folder / "state"
    with AdaptiveModel.open(folder, state_folder=state) as model:
        search, report = (load_part(options, part, model) for part in ("search", "report"))
        count = 100 if options.quick else len(search.images)
        images, labels = search.images[:count], search.labels[:count]
        goal, settings = Goal(latency_ratio=LATENCY_RATIO), AdaptationSettings(fill_pool=True)
        found = model.adapt(images, goal, labels=labels, settings=settings, progress=options.progress)
        assert found.measured is not None
        np.save(options.work_folder / "inputs.npy", model.prepare(report.images[:INPUTS]))
    cycles, crowd = (QUICK_CYCLES, QUICK_CROWD_CYCLES) if options.quick else (CYCLES, CROWD_CYCLES)
    with options.progress.task("burner on and off", cycles + crowd) as task:
        measured = _in_a_process(folder, state, options.work_folder / "inputs.npy", cycles, crowd, task)
    left = [one for one in measured["cycles"] if one["recover_s"] is not None]
    switches = measured["switches"]
    figures = {
        "recover_p95_s": _percentile([one["recover_s"] for one in left], 95),
        "up_p95_s": _percentile([one["up_s"] for one in measured["cycles"][1:]], 95),
        "calm_on_best": _mean([one["calm_on_best"] for one in measured["cycles"][1:]]),
        "recover_median_s": _percentile([one["recover_s"] for one in left], 50),
        "cycles_over_budget": len(left),
        "inside_after_recovery": _mean([one["inside_after"] for one in left]),
        "failed": measured["failed"],
        "wrong": measured["wrong"],
        "requests": measured["requests"],
        "switches": len(switches),
        "swap_p95_ms": _percentile([one["exchange_ms"] for one in switches], 95),
        "prepare_p95_ms": _percentile(measured["prepare_ms"], 95),
        "worst_stall_ms": measured["worst_stall_ms"],
    }
    table: list[dict[str, object]] = [
        {
            "what": "budget",
            "latency_ms": found.goal.latency_ms,
            "chosen_ms": found.measured.latency_ms,
            **measured["pool"],
        }
    ]
    table += [{"what": "burner", **one} for one in measured["cycles"]]
    table += [{"what": "switch", **one} for one in switches]
    return BenchOutcome(
        figures, table, data="cifar10/test.zip#search; inputs of #report, whose labels are not looked at"
    )


def _in_a_process(folder: Path, state: Path, inputs: Path, cycles: int, crowd: int, task: Task) -> dict[str, Any]:
    """Run ``switch.process`` and pass its progress on; its last line is what it found."""
    places = [str(path.resolve()) for path in (folder, state, inputs)]
    command = [sys.executable, "-m", "benchmarks.switch.process", *places, str(cycles), str(crowd)]
    lines: list[str] = []
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            task.advance()
        if process.wait(timeout=LIMIT_S) != 0:
            raise RuntimeError("the measuring process failed; its errors are above")
    return json.loads(lines[-1])


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
