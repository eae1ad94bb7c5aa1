"""Answers by a deadline and anytime answers: how late, how often without an answer, and what runs on after a stop.

Half of the requests have a random deadline, the others are interrupted after a random time, while a burner takes half
of the core and leaves it again. ``late_p99_ms``: of the answers by a deadline, from the call to the answer, beyond the
deadline. ``unanswered``: interruptions without an answer although the first exit had been computed by then, half a
millisecond before or longer, by a clock of the bench around the runtime; and deadlines that failed, or were refused
although they were not below the least that the refusal named. ``unanswered_beyond_longest``: interruptions without an
answer that came later than the longest of many first answers, measured beforehand in the same condition.
``cpu_after_stop_ms``: the 99th percentile of the processor time of the whole process from the stop until nothing runs
any more. ``timed_exits_latency_ratio``: of ordinary answers, with exits for deadlines over without.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import CHECKOUT, adapted_bundle
from benchmarks.support.exit_latency import EXITS_GOAL
from benchmarks.support.reference_bundles import load_part
from device_sdk.progress import Task
from device_sdk.session.adaptive_model import AdaptiveModel

TARGETS = {
    "late_p99_ms": Target(maximum=1.0),
    "unanswered": Target(maximum=0),
    "cpu_after_stop_ms": Target(maximum=2.0),
}
REQUESTS, QUICK_REQUESTS = 2000, 200
SAMPLES, QUICK_SAMPLES = 500, 100
LIMIT_S = 400.0


def run(options: BenchOptions) -> BenchOutcome:
    """Calibrate exits here, then measure in a process that is pinned to one core."""
    folder, state = adapted_bundle(options), options.work_folder / "state"
    with AdaptiveModel.open(folder, state_folder=state) as model:
        calibration, report = (load_part(options, part, model) for part in ("calibration", "report"))
        count = QUICK_SAMPLES if options.quick else SAMPLES
        images, own = calibration.images[:count], calibration.labels[:count]
        found = model.adapt(images, EXITS_GOAL, {"exits"}, own, progress=options.progress)
        inputs, labels = options.work_folder / "inputs.npy", options.work_folder / "labels.npy"
        np.save(inputs, model.prepare(report.images[:count]))
        np.save(labels, report.labels[:count])
    requests = QUICK_REQUESTS if options.quick else REQUESTS
    with options.progress.task("deadlines and interruptions", 8) as task:
        measured = _in_a_process([folder, state, inputs, labels], requests, task)
    figures = measured["figures"]
    exits = {choice.exit: choice.threshold for choice in found.plan.exits}
    table: list[dict[str, object]] = [{"what": "plan", "exits": exits}, *measured["table"]]
    return BenchOutcome(figures, table, data="cifar10/test.zip#calibration for the exits, #report for the requests")


def _in_a_process(paths: list[Path], requests: int, task: Task) -> dict[str, Any]:
    """Run ``deadline.process`` and pass its progress on; its last line is what it found."""
    places = [str(path.resolve()) for path in paths]
    command = [sys.executable, "-m", "benchmarks.deadline.process", *places, str(requests)]
    lines: list[str] = []
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            task.advance()
        if process.wait(timeout=LIMIT_S) != 0:
            raise RuntimeError("the measuring process failed; its errors are above")
    return dict(json.loads(lines[-1]))
