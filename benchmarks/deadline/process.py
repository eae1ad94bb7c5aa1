"""The process that ``deadline`` pins to one core: requests, a burner beside them, and the outcome of each.

``python -m benchmarks.deadline.process BUNDLE STATE INPUTS LABELS REQUESTS``: a line per stage, then one of JSON.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.burner import burning
from device_sdk.errors import InfeasibleDeadlineError, NoAnswerYetError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.policies.exits.placed_exits import timed_plan
from device_sdk.profiling.plans import mean_latencies_ms
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.runtimes.port import Array, StopSignal
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import Answer
from device_sdk.supernet.plan import Plan

STAGES = 8  # the burner runs in every second one
FIRST_ANSWERS = 150  # whose longest is the first exit's time, per condition
SHORTEST, LONGEST = 0.1, 4.0  # of the full model's latency: deadlines and interruptions
WARM_UPS, MEDIANS = 20, 3
OVERHEAD_SAMPLES = 30
SETTLING_S = 0.2  # after the burner came or went, before first answers are timed
PAUSE_S = 0.01  # between two requests
PASSED_ON_S = 0.0005  # from the end of the first step to its answer in the hands of the caller


@dataclass
class Requests:
    """All requests and their outcomes."""

    late_ms: list[float] = field(default_factory=list)
    deadline_late: list[bool] = field(default_factory=list)
    refused: dict[bool, list[bool]] = field(default_factory=lambda: {False: [], True: []})
    cpu_ms: list[float] = field(default_factory=list)
    stop_ms: list[float] = field(default_factory=list)
    without_answer: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    interrupted_with: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)
    beyond_longest: int = 0  # interruptions without an answer beyond the longest first answer of that condition


class FirstStep:
    """Runs the first step of the plan in use, and notes when it ended last, whatever the SDK makes of it."""

    def __init__(self, model: AdaptiveModel) -> None:
        self.ended_s = 0.0
        steps = model._in_use.running().loaded.stepped().steps
        self._stretch = steps[0].stretch
        steps[0] = replace(steps[0], stretch=self)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        return self._stretch.run(inputs)

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        outputs = self._stretch.run_until(inputs, stop)
        self.ended_s = time.perf_counter()
        return outputs

    def close(self) -> None:
        self._stretch.close()


@dataclass(frozen=True)
class Scene:
    """Model, samples and times that requests are drawn from."""

    model: AdaptiveModel
    inputs: np.ndarray  # [count, *input]
    labels: np.ndarray  # [count]
    full_ms: float
    random: SplitMix64
    first: FirstStep

    def sample(self) -> tuple[np.ndarray, int]:
        at = self.random.below(len(self.inputs))
        return self.inputs[at : at + 1], int(self.labels[at])

    def time_ms(self) -> float:
        share = self.random.below(10_000) / 10_000
        return self.full_ms * (SHORTEST + share * (LONGEST - SHORTEST))


def measure(folder: Path, state: Path, inputs: Path, labels: Path, requests: int) -> dict[str, Any]:
    """1. the first exit's time in both conditions; 2. stages of requests, with the burner in every second one."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with AdaptiveModel.open(folder, state_folder=state) as model, burning() as burner:
        samples, right = np.load(inputs), np.load(labels)
        full_ms = min(_median_ms(model, samples[:1]) for _ in range(MEDIANS))
        timed_exits_ratio = _timed_exits_ratio(model, samples[:OVERHEAD_SAMPLES])
        model.exits.answer_times_ms(samples[:1])
        first = FirstStep(model)
        scene = Scene(model, samples, right, full_ms, SplitMix64(0), first)
        first_ms = {on: _first_answer_ms(scene, burner, on=on) for on in (False, True)}
        found = Requests()
        time.sleep(2.0)  # longer than what is remembered of the first answers
        for stage in range(STAGES):
            on = bool(stage % 2)
            burner.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
            for number in range(requests // STAGES):
                if number % 2:
                    _interrupt(scene, found, first_ms[on])
                else:
                    _ask(scene, found, on=on)
                time.sleep(PAUSE_S)
            print("stage", flush=True)
    if found.unanswered:
        print(found.unanswered[:5], file=sys.stderr)
    late = np.array(found.late_ms)
    figures = {
        "late_p99_ms": float(np.percentile(late, 99)) if len(late) else float("nan"),
        "late_max_ms": float(late.max(initial=0.0)),
        "late_share": float((late > 0).mean()),
        "unanswered": float(len(found.unanswered)),
        "cpu_after_stop_ms": float(np.percentile(found.cpu_ms, 99)),
        "cpu_after_stop_median_ms": float(np.median(found.cpu_ms)),
        "stopped_within_ms": float(np.percentile(found.stop_ms, 99)),
        "refused_share": float(np.mean(found.refused[False])),
        "refused_share_with_burner": float(np.mean(found.refused[True])),
        "unanswered_beyond_longest": float(found.beyond_longest),
        "no_answer_yet_share": float(np.mean(found.without_answer)),
        "accuracy_by_deadline": 100 * float(np.mean(found.right)),
        "requests": float(len(late) + len(found.cpu_ms) + sum(map(sum, found.refused.values()))),
        "timed_exits_latency_ratio": timed_exits_ratio,
    }
    table = [
        {"what": "full model", "latency_ms": full_ms},
        {"what": "first exit's time", "calm_ms": first_ms[False], "with_burner_ms": first_ms[True]},
        {"what": "answers by a deadline", **found.sources},
        {"what": "answers at an interruption", **found.interrupted_with},
    ]
    return {"figures": figures, "table": table}


def _median_ms(model: AdaptiveModel, sample: np.ndarray) -> float:
    """Of the plan's path to the end, exits not taken."""
    stepped = model._in_use.running().loaded.stepped()
    return float(np.median([sum(stepped.run_through(sample)) for _ in range(WARM_UPS)]))


def _timed_exits_ratio(model: AdaptiveModel, samples: np.ndarray) -> float:
    """Mean latency of ordinary answers of a plan that has exits for deadlines alone, over that without these."""
    supernet, subnet = model.bundle.supernet, model.plan.subnet
    runtime = OnnxRuntime(threads=1)
    loaded = [LoadedPlan(model.bundle, runtime, one) for one in (timed_plan(supernet, subnet), Plan(subnet))]
    with_ms, without_ms = mean_latencies_ms(loaded, samples, rounds=7)
    return with_ms / without_ms


def _first_answer_ms(scene: Scene, burner: subprocess.Popen[bytes], *, on: bool) -> float:
    """The longest time until the first answer of an anytime run."""
    burner.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
    time.sleep(SETTLING_S)
    longest = 0.0
    for _ in range(FIRST_ANSWERS):
        began = time.perf_counter()
        with scene.model.stream(scene.sample()[0]) as running:
            running.wait_first()
            longest = max(longest, (time.perf_counter() - began) * 1e3)
    burner.send_signal(signal.SIGSTOP)
    return longest


def _ask(scene: Scene, found: Requests, *, on: bool) -> None:
    """One request with a deadline."""
    (sample, label), deadline_ms = scene.sample(), scene.time_ms()
    began = time.perf_counter()
    try:
        answer = scene.model.infer(sample, deadline_ms=deadline_ms)
    except InfeasibleDeadlineError as error:
        found.refused[on].append(True)
        if error.least_ms <= deadline_ms:
            found.unanswered.append(f"refused {deadline_ms} ms, the least is {error.least_ms} ms")
        return
    except Exception as error:
        found.unanswered.append(repr(error))
        return
    found.refused[on].append(False)
    found.late_ms.append(max(0.0, (time.perf_counter() - began) * 1e3 - deadline_ms))
    found.right.append(int(answer.output.argmax()) == label)
    found.sources.update(answer.source)


def _interrupt(scene: Scene, found: Requests, first_ms: float) -> None:
    """One anytime run that is interrupted."""
    (sample, _), after_ms = scene.sample(), scene.time_ms()
    scene.first.ended_s = math.inf
    began = time.perf_counter()
    with scene.model.stream(sample) as running:
        time.sleep(max(0.0, after_ms / 1e3 - (time.perf_counter() - began)))
        stopped, cpu = time.perf_counter(), time.process_time()
        first_ended_s = scene.first.ended_s  # infinite while it runs
        running.stop()
        answer: Answer | None
        try:
            answer = running.latest()
        except NoAnswerYetError:
            answer = None
    found.cpu_ms.append((time.process_time() - cpu) * 1e3)
    found.stop_ms.append((time.perf_counter() - stopped) * 1e3)
    found.without_answer.append(answer is None)
    if answer is not None:
        found.interrupted_with.update(answer.source)
        return
    found.beyond_longest += (stopped - began) * 1e3 > first_ms
    if stopped > first_ended_s + PASSED_ON_S:
        late_ms = (stopped - first_ended_s) * 1e3
        found.unanswered.append(f"no answer {late_ms:.2f} ms after the first exit was computed")


if __name__ == "__main__":
    _folder, _state, _inputs, _labels, _requests = sys.argv[1:]
    print(json.dumps(measure(Path(_folder), Path(_state), Path(_inputs), Path(_labels), int(_requests))))
