"""The process whose memory ``elastic`` limits.

``python -m benchmarks.elastic.process BUNDLE STATE INPUTS SECONDS``: a line per limit, then one of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.elastic.limits import GroupLimit, Limit, find_limit
from benchmarks.elastic.single import answers_within
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.exits.elastic_plan import least_plan_bytes
from device_sdk.policies.exits.placed_exits import timed_plan
from device_sdk.profiling.plans import measured_peak_bytes
from device_sdk.runtimes.onnx_runtime import OnnxRuntime, give_back_freed_memory
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import Plan

SHARES = (0.25, 1.3, 0.15, 1.1, 0.1, 1.5, 0.05)  # of the single model's memory: the seven limits
AMPLE = 4.0  # the limit at the beginning
THREADS = 2
PAUSE_S = 0.01  # of each thread between two requests
READ_S = 0.002  # between two readings of the memory


@dataclass
class Stage:
    """Measurements under one limit. ``readings``: seconds since the change, and bytes beyond the bare runtime."""

    limit_bytes: int
    readings: list[tuple[float, int]] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    latency_ms: list[float] = field(default_factory=list)

    def adapt_s(self) -> float:
        """Until no later reading was above the limit; as long as the stage where the last one still was."""
        over = [at_s for at_s, used_bytes in self.readings if used_bytes > self.limit_bytes]
        later = [at_s for at_s, _ in self.readings if not over or at_s > over[-1]]
        return 0.0 if not over else later[0] if later else self.readings[-1][0]

    def over(self, patience_s: float) -> int:
        """Readings above the limit later than ``patience_s`` after the change."""
        return sum(used > self.limit_bytes for at_s, used in self.readings if at_s > patience_s)


class Requests:
    """Asks without a break, from several threads, until it is stopped; failures are counted."""

    def __init__(self, model: AdaptiveModel, inputs: np.ndarray, first: Stage) -> None:
        self.failures: list[str] = []
        self.count = 0
        self.stage = first
        self._model, self._inputs = model, inputs
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                at, stage = self.count % len(self._inputs), self.stage
                self.count += 1
            try:
                answer = self._model.infer(self._inputs[at : at + 1])
            except Exception as error:
                with self._lock:
                    self.failures.append(repr(error))
                continue
            with self._lock:
                stage.sources.update(answer.source)
                stage.latency_ms.append(answer.latency_ms)
            time.sleep(PAUSE_S)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def measure(folder: Path, state: Path, inputs: Path, stage_s: float) -> dict[str, Any]:
    """1. the single model's memory; 2. requests under an ample limit; 3. the seven limits; 4. the single model."""
    limit = find_limit()
    samples = np.load(inputs)
    with AdaptiveModel.open(folder, state_folder=state, memory_cap_mb=1000) as model:
        plan = timed_plan(model.bundle.supernet, model.bundle.supernet.original)
        lean = Workspace(model.bundle, OnnxRuntime(threads=1, lean=True))
        single_bytes = measured_peak_bytes(lean, Plan(plan.subnet)) or 0
        model.use(plan)
        for one in range(5):
            model.infer(samples[one : one + 1])
        model.exits.answer_times_ms(samples[:1])
        _release(model)
        limit.begin(model)
        least_bytes = least_plan_bytes(model.bundle, plan)
        limits = [max(round(share * single_bytes), least_bytes) for share in (AMPLE, *SHARES)]
        stages = [Stage(limit_bytes) for limit_bytes in limits]
        limit.set(model, limits[0])
        requests = Requests(model, samples, stages[0])
        try:
            for stage in stages:
                requests.stage = stage
                _watch(limit, model, stage, stage_s)
                print("limit", flush=True)
        finally:
            requests.stop()
    if requests.failures:
        print(requests.failures[:3], file=sys.stderr)
    changed = stages[1:]  # after the ample one
    adapted = [stage.adapt_s() for stage in changed]
    patience_s = float(np.percentile(adapted, 95))
    group = limit.folder if isinstance(limit, GroupLimit) else None
    single_fails = [not answers_within(folder, inputs, one.limit_bytes, beside=group) for one in changed]
    must_fail = [single_bytes > stage.limit_bytes for stage in changed]
    figures = {
        "over_budget": float(sum(stage.over(min(1.0, stage_s / 2)) for stage in changed)),
        "failed": float(len(requests.failures)),
        "adapt_p95_s": patience_s,
        "adapt_max_s": max(adapted),
        "requests": float(requests.count),
        "readings": float(sum(len(stage.readings) for stage in changed)),
        "single_exit_failures": float(sum(single_fails)),
        "single_exit_unexpected": float(sum(np.not_equal(single_fails, must_fail))),
        "single_exit_mb": single_bytes / MB,
    }
    table: list[dict[str, object]] = [{"what": "limit", "how": limit.name}]
    for stage, fails in zip(changed, single_fails, strict=True):
        table.append(
            {
                "what": f"limit of {stage.limit_bytes / MB:.2f} MB",
                "highest_mb": max(used for at_s, used in stage.readings if at_s > stage_s / 2) / MB,
                "adapt_s": stage.adapt_s(),
                "single_exit": "fails" if fails else "answers",
                "median_ms": float(np.median(stage.latency_ms)),
                "requests": len(stage.latency_ms),
                **stage.sources,
            }
        )
    return {"figures": figures, "table": table}


def _watch(limit: Limit, model: AdaptiveModel, stage: Stage, stage_s: float) -> None:
    """Change the limit in a thread, and read the memory all the time."""
    began = time.perf_counter()
    changing = threading.Thread(target=limit.set, args=(model, stage.limit_bytes))
    changing.start()
    while (at_s := time.perf_counter() - began) < stage_s:
        stage.readings.append((at_s, limit.used_bytes()))
        time.sleep(READ_S)
    changing.join()


def _release(model: AdaptiveModel) -> None:
    """Free what is loaded, so that what remains is the bare runtime."""
    model._in_use.running().loaded.release()
    gc.collect()
    give_back_freed_memory()


if __name__ == "__main__":
    _folder, _state, _inputs, _seconds = sys.argv[1:]
    print(json.dumps(measure(Path(_folder), Path(_state), Path(_inputs), float(_seconds))))
