"""Latency and memory of whole plans, measured as they are deployed."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from device_sdk.bundles.golden import golden_inputs
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.memory import peak_during
from device_sdk.profiling.stretches import FIRST_RUNS
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Plan

_HIGHEST_CONFIDENCE = 1.0  # exits with a threshold above it would not be loaded


def mean_latencies_ms(plans: Sequence[LoadedPlan], inputs: Array, *, rounds: int = 3) -> list[float]:
    """The mean latency of each plan over ``inputs`` [count, *input], one sample at a time, plans interleaved.

    Each sample contributes the median of ``rounds``, since latency differs between samples.
    """
    totals = np.zeros(len(plans))
    for at in range(len(inputs)):
        sample = inputs[at : at + 1]
        calls = {str(number): partial(plan.run, sample) for number, plan in enumerate(plans)}
        timed = measure_interleaved(calls, rounds=rounds, warmup=1)
        totals += [timed[str(number)].median_ms for number in range(len(plans))]
    return [float(total) / len(inputs) for total in totals]


def measured_peak_bytes(workspace: Workspace, plan: Plan, *, batch: int = 1) -> int | None:
    """Peak growth of this process while ``plan`` is loaded and runs, in bytes; None where unknown (not Linux).

    It includes session creation and the runtime's arena. Exits are not taken, so that the whole plan runs. The plan is
    freed afterwards. Memory of other threads counts as well. Repeated measurements of a 10 MB plan differ by a tenth.
    Under a memory cap the plan is paged.

    Raises:
        UsageError: the plan does not fit the bundle's graph.
        BlobError, CompositionError, RuntimeFailedError: it does not load or run.
    """
    through = tuple(msgspec.structs.replace(choice, threshold=_HIGHEST_CONFIDENCE) for choice in plan.exits)
    whole = msgspec.structs.replace(plan, exits=through)
    first = workspace.supernet.cut_points_at(plan.subnet.input_size)[0]
    inputs = golden_inputs(first, seed=0, batch=batch)[0]
    gc.collect()

    def load_and_run() -> LoadedPlan:
        loaded = workspace.load_plan(whole, batch=batch)
        run = loaded.run if plan.split is not None else loaded.stepped().run_through
        for _ in range(FIRST_RUNS):
            run(inputs)
        return loaded

    loaded, peak = peak_during(load_and_run)
    loaded.close()
    return peak
