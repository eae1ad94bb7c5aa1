"""Latency of whole plans and of calls beside the models that they run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

import msgspec
import numpy as np

from device_sdk.bundles.runnable import golden_inputs
from device_sdk.execution.loaded_plan import AtSize, LoadedPlan
from device_sdk.execution.workspace import Workspace
from device_sdk.fragments.composition import Stretch
from device_sdk.profiling.stretches import FIRST_RUNS, WARMUP, Timing, peak_during
from device_sdk.profiling.timing import NANOSECONDS_PER_MS, Clock, measure_interleaved
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime, StopSignal
from device_sdk.supernet.deciders.port import hard
from device_sdk.supernet.plan import Decider, ExitChoice, Plan, decider_kind

_HIGHEST_CONFIDENCE = 1.0  # exits with a threshold above it would not be loaded


def mean_latencies_ms(
    plans: Sequence[LoadedPlan],
    inputs: Array,
    *,
    rounds: int = 3,
    at_size: Callable[[int], AtSize] | None = None,
    pause_s: float | None = None,
) -> list[float]:
    """The mean latency of each plan over ``inputs`` [count, *input], one sample at a time, plans interleaved.

    Each sample contributes the median of ``rounds``, since latency differs between samples. ``at_size``: of the sample
    with this number, for cascades; its time counts. ``pause_s``: before each call, as an application makes it; all of
    its time counts then, so that plans at different homes compare. None: back to back.
    """
    totals = np.zeros(len(plans))
    for at in range(len(inputs)):
        sample, resized = inputs[at : at + 1], None if at_size is None else at_size(at)
        calls = {str(number): partial(plan.run, sample, at_size=resized) for number, plan in enumerate(plans)}
        waiting = () if pause_s is None else calls
        timed = measure_interleaved(calls, rounds=rounds, warmup=1, pause_s=pause_s or 0.0, waiting=waiting)
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


_ROUNDS, _LEAST_ROUNDS = 16, 3  # of each kind of decider
_LIMIT_S = 1.0


@dataclass(frozen=True)
class CallTimes:
    """``overhead_ms``: of a call, beyond its models; ``decision_ms``: of a decision, by kind of decider."""

    overhead_ms: float = 0.0
    decision_ms: Mapping[str, float] = field(default_factory=dict)


def call_times(workspace: Workspace, timing: Timing) -> CallTimes:
    """Medians over calls of the original path on golden inputs; zeros under a memory cap, where they are unknown.

    Raises:
        BlobError, RuntimeFailedError: the path does not load or run.
    """
    if workspace.memory_cap_bytes is not None:
        return CallTimes()
    clock, runtime = timing.clock, _TimedRuntime(workspace.runtime, timing.clock)
    inputs = golden_inputs(workspace.supernet.cut_points[0], seed=0, batch=timing.batch)[0]
    plan = replace(workspace, runtime=runtime).load_plan(Plan(workspace.supernet.original), batch=timing.batch)
    overheads_ns: list[int] = []
    try:
        for _ in range(WARMUP):
            output = plan.run(inputs).output
        kinds = get_args(Decider) if output.ndim == 2 else ()  # [batch, classes]
        deciders = [kind.largest(output.shape[1]) for kind in kinds]
        decided_ns: list[list[int]] = [[] for _ in deciders]
        began_ns = clock()
        for number in range(_ROUNDS * max(len(deciders), 1)):
            least = number >= _LEAST_ROUNDS * len(deciders)
            if least and (clock() - began_ns) / 1e9 >= _LIMIT_S:
                break
            runtime.inside_ns, started_ns = 0, clock()
            output = plan.run(inputs).output
            overheads_ns.append(clock() - started_ns - runtime.inside_ns)
            if deciders:
                which = number % len(deciders)
                started_ns = clock()
                hard(deciders[which], output)
                decided_ns[which].append(clock() - started_ns)
    finally:
        plan.close()
    decision_ms = {decider_kind(one): _median_ms(taken) for one, taken in zip(deciders, decided_ns, strict=True)}
    return CallTimes(_median_ms(overheads_ns), decision_ms)


def _median_ms(taken_ns: Sequence[int]) -> float:
    """At least 0, whatever happened to the clock."""
    return max(0.0, float(np.median(taken_ns)) / NANOSECONDS_PER_MS) if taken_ns else 0.0


class _TimedRuntime:
    """A runtime that notes how long its stretches run. Implements the port. ``inside_ns``: since it was set to 0."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime, self.clock, self.inside_ns = runtime, clock, 0

    @property
    def identity(self) -> str:
        """That of the runtime."""
        return self._runtime.identity

    @property
    def concurrency(self) -> int:
        """See the port: it notes times of one stretch after the other."""
        return 1

    @property
    def waits_for_threads(self) -> bool:
        """See the port."""
        return self._runtime.waits_for_threads

    def load(self, stretch: Stretch) -> LoadedStretch:
        """See the port."""
        return _TimedStretch(self, self._runtime.load(stretch))

    def taking_turns(self) -> Runtime:
        """See the port."""
        return self


class _TimedStretch:
    def __init__(self, runtime: _TimedRuntime, stretch: LoadedStretch) -> None:
        self._runtime, self._stretch = runtime, stretch

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        started_ns = self._runtime.clock()
        outputs = self._stretch.run(inputs)
        self._runtime.inside_ns += self._runtime.clock() - started_ns
        return outputs

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port; not timed."""
        return self._stretch.run_until(inputs, stop)

    def close(self) -> None:
        """See the port."""
        self._stretch.close()
