"""Latency and memory of whole plans, measured as they are deployed."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from device_sdk.bundles.golden import golden_inputs
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.memory import peak_during
from device_sdk.profiling.stretches import FIRST_RUNS, WARMUP, Timing
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import ExitChoice, Plan

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


def exit_overhead_ms(workspace: Workspace, timing: Timing, branch_ms: Mapping[tuple[str, str], float]) -> float:
    """Latency of going on behind one exit, beyond its branch alone: the decision, and a further session.

    The mean over all exits of the original path at different cut points, none of which answers. ``branch_ms``: each
    branch alone, by exit and rendition. At least 0; 0 without exits, and unknown, hence 0, under a memory cap.

    Raises:
        BlobError, RuntimeFailedError: a segment does not load or run.
        MeasurementError: the clock stood still or was set back.
    """
    supernet = workspace.supernet
    choices = {
        exit_.position: ExitChoice(exit_.id, _HIGHEST_CONFIDENCE, exit_.renditions[0].name)
        for exit_ in supernet.exits_along(supernet.original)
    }
    if not choices or workspace.memory_cap_bytes is not None:
        return 0.0
    tried = tuple(choices[position] for position in sorted(choices))
    plans = [workspace.load_plan(Plan(supernet.original, exits), batch=timing.batch) for exits in ((), tried)]
    inputs = golden_inputs(supernet.cut_points[0], seed=0, batch=timing.batch)[0]
    try:
        leaves = any(number < len(tried) for number in plans[1].run(inputs).answered_by)  # even noise can be certain
        calls = {
            "0": partial(plans[0].run, inputs),
            "1": partial(_run_through if leaves else LoadedPlan.run, plans[1], inputs),
        }
        timed = measure_interleaved(
            calls,
            rounds=timing.rounds,
            warmup=WARMUP,
            patience=timing.patience,
            clock=timing.clock,
        )
    finally:
        for plan in plans:
            plan.close()
    branches_ms = sum(branch_ms[choice.exit, choice.rendition] for choice in tried)
    return max(0.0, (timed["1"].median_ms - timed["0"].median_ms - branches_ms) / len(tried))


def _run_through(plan: LoadedPlan, inputs: Array) -> None:
    plan.stepped().run_through(inputs)


def measured_peak_bytes(workspace: Workspace, plan: Plan, *, batch: int = 1) -> int | None:
    """Peak growth of this process while ``plan`` is loaded and runs, in bytes; None where unknown (not Linux).

    It includes session creation and the runtime's arena. Exits are not taken, so that the whole plan runs. The plan is
    freed afterwards. Memory of other threads counts as well. Repeated measurements of a 10 MB plan differ by a tenth.
    Under a memory cap the plan is paged.

    Raises:
        UsageError: the plan does not fit the bundle's graph.
        BlobError, CompositionError, RuntimeFailedError: it does not load or run.
    """
    through = tuple(msgspec.structs.replace(one.without_asking(), threshold=_HIGHEST_CONFIDENCE) for one in plan.exits)
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
