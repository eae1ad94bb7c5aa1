"""The memory of whole plans, measured as they are deployed."""

from __future__ import annotations

import gc

import msgspec

from device_sdk.bundles.golden import golden_inputs
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.memory import peak_during
from device_sdk.profiling.stretches import FIRST_RUNS
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Plan


def measured_peak_bytes(workspace: Workspace, plan: Plan, *, batch: int = 1) -> int | None:
    """Peak growth of this process while ``plan`` is loaded and runs, in bytes; None where unknown (not Linux).

    It includes session creation and the runtime's arena. Exits are not taken, so that the whole plan runs. The plan is
    freed afterwards. Memory of other threads counts as well. Repeated measurements of a 10 MB plan differ by a tenth.
    Under a memory cap the plan is paged.

    Raises:
        UsageError: the plan does not fit the bundle's graph.
        BlobError, CompositionError, RuntimeFailedError: it does not load or run.
    """
    through = tuple(msgspec.structs.replace(choice, threshold=UNREACHABLE_CONFIDENCE) for choice in plan.exits)
    whole = msgspec.structs.replace(plan, exits=through)
    first = workspace.supernet.cut_points_at(plan.subnet.input_size)[0]
    inputs = golden_inputs(first, seed=0, batch=batch)[0]
    gc.collect()

    def load_and_run() -> LoadedPlan:
        loaded = workspace.load_plan(whole, batch=batch)
        for _ in range(FIRST_RUNS):
            loaded.run(inputs)
        return loaded

    loaded, peak = peak_during(load_and_run)
    loaded.close()
    return peak
