"""The process that ``switch`` pins to one core: calls, a burner beside them, and the outcome of every call.

``python -m benchmarks.switch.process BUNDLE STATE INPUTS CYCLES CROWD_CYCLES``: a line per cycle, then one of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.support.burner import burning
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.live.plan_pool import PlanPool
from device_sdk.live.switching import LiveSettings, scaled
from device_sdk.logs.adaptation_log import Switched, read_log
from device_sdk.runtimes import OnnxRuntime
from device_sdk.search.port import best_within
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.device_state import DeviceState
from device_sdk.supernet.plan import Plan, Subnet

WITH_BURNER_S, WITHOUT_S, CROWD_S = 4.0, 5.0, 4.0
LAST = 5  # calls whose median has to be inside the budget
THREADS = 4
STALL_CALLS = 50


@dataclass
class Requests:
    """All requests: the failed ones, and those whose result is not bit-identical to that of the plan it names."""

    inputs: np.ndarray  # [count, *input]
    expected: dict[Subnet, list[bytes]]
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    wrong: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, model: AdaptiveModel, number: int) -> float:
        """One request; its wall time in milliseconds."""
        return self.ask_whom(model, number)[0]

    def ask_whom(self, model: AdaptiveModel, number: int) -> tuple[float, Subnet | None]:
        """One request; its wall time in milliseconds, and the subnet that answered."""
        at = number % len(self.inputs)
        started = time.perf_counter()
        try:
            answer = model.infer(self.inputs[at : at + 1])
        except Exception as error:
            with self._lock:
                self.sent += 1
                self.failures.append(repr(error))
            return (time.perf_counter() - started) * 1e3, None
        elapsed_ms = (time.perf_counter() - started) * 1e3
        right = answer.output.tobytes() == self.expected.get(answer.plan.subnet, [b""] * len(self.inputs))[at]
        with self._lock:
            self.sent += 1
            self.wrong += not right
        return elapsed_ms, answer.plan.subnet


def measure(folder: Path, state: Path, inputs: Path, cycles: int, crowd: int) -> dict[str, Any]:
    """1. one caller, burner on and off; 2. four callers, the same; 3. one caller beside the preparation of plans."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with AdaptiveModel.open(folder, state_folder=state) as model, burning() as burner:
        pool = DeviceState(state, model.bundle, OnnxRuntime(threads=1)).load_pool()
        assert pool is not None
        assert pool.budget.latency_ms is not None
        requests = Requests(np.load(inputs), _expected(model, pool, np.load(inputs)))
        events = sum(1 for _ in read_log(model.log.path))
        model.warm_up()
        model.live.start("latency")
        best = best_within(pool.candidates, scaled(pool.budget, 1.0, LiveSettings()))
        assert best is not None
        good = {one.subnet for one in pool.candidates if one.expected_accuracy >= best.expected_accuracy}
        found = []
        for _ in range(cycles):
            found.append(_cycle(model, requests, burner, pool.budget.latency_ms, good))
            print("cycle", flush=True)
        for _ in range(crowd):
            _crowd(model, requests, burner)
            print("crowd", flush=True)
        model.live.stop("latency", "classes")
        stalls, prepares = _stalls(model, pool, requests)
        switched = [line.event for line in read_log(model.log.path)][events:]
    if requests.failures:
        print(requests.failures[:3], file=sys.stderr)
    switches = [msgspec.to_builtins(one) for one in switched if isinstance(one, Switched)]
    return {
        "cycles": found,
        "switches": switches,
        "failed": len(requests.failures),
        "wrong": requests.wrong,
        "requests": requests.sent,
        "prepare_ms": prepares,
        "worst_stall_ms": max(stalls),
        "pool": {
            "candidates": len(pool.candidates),
            "fastest_ms": min(one.cost.latency_ms for one in pool.candidates),
            "slowest_ms": max(one.cost.latency_ms for one in pool.candidates),
        },
    }


def _expected(model: AdaptiveModel, pool: PlanPool, inputs: np.ndarray) -> dict[Subnet, list[bytes]]:
    """The output of every candidate for every input, run separately."""
    runtime = OnnxRuntime(threads=1)
    answers = {}
    for one in pool.candidates:
        loaded = runtime.load(model.bundle.stretch(one.subnet.edges))
        answers[one.subnet] = [loaded.run([inputs[at : at + 1]])[-1].tobytes() for at in range(len(inputs))]
        loaded.close()
    return answers


def _cycle(
    model: AdaptiveModel,
    requests: Requests,
    burner: subprocess.Popen[bytes],
    budget_ms: float,
    good: Collection[Subnet],
) -> dict[str, Any]:
    """Calm, burner, and the time until the median of the last calls, once outside, was inside again.

    ``good``: the best subnet that fits in calm times, and those as good; also timed until one is in use again.
    """
    began = time.perf_counter()
    calm: list[tuple[float, float]] = []
    ends_on: list[bool] = []
    while not calm or calm[-1][0] < WITHOUT_S:
        elapsed_ms, subnet = requests.ask_whom(model, len(calm))
        calm.append((time.perf_counter() - began, elapsed_ms))
        ends_on.append(subnet in good)
    up = next((at for at, on_best in enumerate(ends_on) if on_best), None)
    before = model.plan.subnet
    burner.send_signal(signal.SIGCONT)
    burnt = _call_for(model, requests, WITH_BURNER_S)
    burner.send_signal(signal.SIGSTOP)
    medians = [
        (ended_s, float(np.median([ms for _, ms in burnt[max(0, at - LAST + 1) : at + 1]])))
        for at, (ended_s, _) in enumerate(burnt)
    ]
    left = next((at for at, (_, median) in enumerate(medians) if median > budget_ms), None)
    back = None if left is None else next((at for at in range(left, len(medians)) if medians[at][1] <= budget_ms), None)
    recover_s = None if left is None else WITH_BURNER_S if back is None else medians[back][0]
    after = [] if back is None else [median <= budget_ms for _, median in medians[back:]]
    return {
        "up_s": WITHOUT_S if up is None else calm[up][0],
        "calm_on_best": float(np.mean(ends_on)),
        "recover_s": recover_s,
        "inside_after": float(np.mean(after)) if after else 0.0,
        "calm_median_ms": float(np.median([ms for _, ms in calm[len(calm) // 2 :]])),
        "burnt_median_ms": float(np.median([ms for _, ms in burnt[len(burnt) // 2 :]])),
        "burnt_first_ms": float(np.median([ms for _, ms in burnt[:LAST]])),
        "switched": model.plan.subnet != before,
    }


def _call_for(model: AdaptiveModel, requests: Requests, seconds: float) -> list[tuple[float, float]]:
    """Requests one after the other: when each ended, seconds from the beginning, and its wall time in milliseconds."""
    began = time.perf_counter()
    calls: list[tuple[float, float]] = []
    while not calls or calls[-1][0] < seconds:
        elapsed_ms = requests.ask(model, len(calls))
        calls.append((time.perf_counter() - began, elapsed_ms))
    return calls


def _crowd(model: AdaptiveModel, requests: Requests, burner: subprocess.Popen[bytes]) -> None:
    """Several concurrent callers, with the burner on and off."""
    callers = [threading.Thread(target=_call_for, args=(model, requests, CROWD_S)) for _ in range(THREADS)]
    for caller in callers:
        caller.start()
    time.sleep(CROWD_S / 4)
    burner.send_signal(signal.SIGCONT)
    time.sleep(CROWD_S / 2)
    burner.send_signal(signal.SIGSTOP)
    for caller in callers:
        caller.join()


def _stalls(model: AdaptiveModel, pool: PlanPool, requests: Requests) -> tuple[list[float], list[float]]:
    """Excess of the longest call over the usual, and times of preparing plans beside it on the same core, in ms."""
    runtime = OnnxRuntime(threads=1)
    usual_ms = float(np.median([requests.ask(model, number) for number in range(STALL_CALLS)]))
    worst, prepares = [], []
    for one in pool.candidates:
        ended = threading.Event()
        taken: list[float] = []

        def prepare(subnet: Subnet = one.subnet, taken: list[float] = taken, ended: threading.Event = ended) -> None:
            started = time.perf_counter()
            LoadedPlan(model.bundle, runtime, Plan(subnet)).run(requests.inputs[:1])
            taken.append((time.perf_counter() - started) * 1e3)
            ended.set()

        preparing = threading.Thread(target=prepare)
        preparing.start()
        calls = [requests.ask(model, 0)]
        while not ended.is_set():
            calls.append(requests.ask(model, len(calls)))
        preparing.join()
        prepares += taken
        worst.append(max(calls) - usual_ms)
    return worst, prepares


if __name__ == "__main__":
    _folder, _state, _inputs, _cycles, _crowds = sys.argv[1:]
    print(json.dumps(measure(Path(_folder), Path(_state), Path(_inputs), int(_cycles), int(_crowds))))
