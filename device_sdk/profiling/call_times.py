"""Time of a call besides the models that it runs: the call itself, and the decision if its answer is hard.

Both are code of a few microseconds when it is run again and again, and of several times as many after a model has
filled the caches with its weights. So each is timed right after a run of the model, once per call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from device_sdk.bundles.golden import golden_inputs
from device_sdk.execution.workspace import Workspace
from device_sdk.fragments.composition import Stretch
from device_sdk.profiling.stretches import WARMUP, Timing
from device_sdk.profiling.timing import NANOSECONDS_PER_MS, Clock
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime
from device_sdk.runtimes.stop_signal import StopSignal
from device_sdk.supernet.deciders.port import hard
from device_sdk.supernet.plan import Decider, Plan, decider_kind

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
