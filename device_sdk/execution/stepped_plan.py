"""A plan that runs exit by exit, on this device alone, and can be ended between and within its steps.

A step is a segment up to an answer. Every exit is evaluated, whatever its threshold; samples whose confidence reaches
the threshold keep that answer, as in any run of the plan. The others take the answer of each later step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.execution.loaded_segments import LoadedSegments
from device_sdk.execution.memory_cap import PlanRetired
from device_sdk.execution.outcome import Answers, Outcome
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.running_calls import RunningCalls
from device_sdk.execution.step_times import StepTimes
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.runtimes.stop_signal import StopSignal
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import ExitChoice

_WARM_UPS, _MEASURED_RUNS = 2, 10
_BATCH_SIZES = 8  # whose times are kept


@dataclass(frozen=True)
class Step:
    """One step: the stretch up to the next answer. ``exit``: the exit that answers; None: the end of the path."""

    number: int
    stretch: LoadedStretch
    exit: ExitChoice | None


class SteppedPlan:
    """The steps of a loaded plan. Thread-safe."""

    def __init__(
        self, found: Sequence[PlanSegment], loaded: LoadedSegments, calls: RunningCalls, hurry: StopSignal
    ) -> None:
        self.steps = [
            Step(number, stretch, segment.exit)
            for number, (segment, stretch) in enumerate(zip(found, loaded.stretches, strict=True))
            if stretch is not None
        ]
        self._calls, self._hurry = calls, hurry
        self._lock = threading.Lock()  # guards the next
        self._times: dict[int, StepTimes] = {}

    def times(self, tensor: Array) -> StepTimes:
        """Times of the steps for batches like ``tensor``, measured on first use. Raises as ``run``.

        A batch size replaces the one that was measured first when too many are known.
        """
        with self._lock:
            known = self._times.get(len(tensor))
        if known is not None:
            return known
        runs_ms = [self.run_through(tensor) for _ in range(_WARM_UPS + _MEASURED_RUNS)][_WARM_UPS:]
        measured = StepTimes([float(one) for one in np.median(runs_ms, axis=0)])
        for run_ms in runs_ms:
            measured.record(run_ms)
        with self._lock:
            while len(self._times) >= _BATCH_SIZES:
                self._times.pop(next(iter(self._times)))
            return self._times.setdefault(len(tensor), measured)

    @property
    def measured_batches(self) -> list[int]:
        """The batch sizes whose times are known."""
        with self._lock:
            return list(self._times)

    def measure_again(self, tensor: Array) -> None:
        """Run all steps once, so that the times of batches like ``tensor`` are those of now. Raises as ``run``."""
        times = self.times(tensor)
        times.record(self.run_through(tensor))

    def run_through(self, tensor: Array) -> list[float]:
        """Run every step on all samples; returns the milliseconds of each. Raises as ``run``."""
        run = _Run(tensor, leaving=False)
        with self._calls:
            for step in self.steps:
                run.take(step, StopSignal())
        return run.taken_ms

    def run(
        self,
        tensor: Array,
        *,
        last: int | None = None,
        stop: StopSignal,
        answered: Callable[[Outcome], None] | None = None,
        may_begin: Callable[[int], bool] = lambda step: True,
        settle: bool = False,
    ) -> Outcome | None:
        """Answer a batch [batch, *input]: at the latest with step ``last``, or with the step before ``stop`` was set.

        ``answered`` is called with the answers so far after each step. ``may_begin``: called with the number of
        each further step, False ends the run. ``settle``: on PlanRetired return the answer so far. Returns None if it
        was stopped before the first answer.

        Raises:
            RuntimeFailedError, BlobError: a step failed.
            PlanRetired: the plan gave way to another one.
        """
        run = _Run(tensor)
        chosen = self.steps if last is None else self.steps[: last + 1]
        with self._calls:
            if not run.take(chosen[0], stop):
                return None
            _tell(run, answered)
            with self._hurry.ending_by(stop.set):
                for step in chosen[1:]:
                    if not len(run.rest) or not may_begin(step.number):
                        break
                    if not _taken(run, step, stop, settle=settle):
                        break
                    _tell(run, answered)
        with self._lock:
            times = self._times.get(len(tensor))
        if times is not None:
            times.record(run.taken_ms)
        return run.answers.outcome()


def _tell(run: _Run, answered: Callable[[Outcome], None] | None) -> None:
    if answered is not None:
        answered(run.answers.so_far())


def _taken(run: _Run, step: Step, stop: StopSignal, *, settle: bool) -> bool:
    """Run ``step``, a later one; True if it finished. PlanRetired ends it too if ``settle`` or ``stop`` is set."""
    try:
        return run.take(step, stop)
    except PlanRetired:
        if settle or stop.is_set:
            return False
        raise


@dataclass
class _Run:
    """One run. ``rest``: the samples that no exit has answered for good; ``taken_ms``: of the steps on all samples."""

    tensor: Array
    leaving: bool = True
    taken_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.answers = Answers(len(self.tensor))
        self.rest: npt.NDArray[np.int64] = np.arange(len(self.tensor))
        self._features: Sequence[Array] = [self.tensor]
        self._began_s = time.perf_counter()

    def take(self, step: Step, stop: StopSignal) -> bool:
        """Run one step; True if it finished."""
        outputs = step.stretch.run_until(self._features, stop)
        if outputs is None:
            return False
        logits = outputs[-1]
        self.answers.put(self.rest, logits, step.number)
        whole = len(self.rest) == len(self.tensor)
        if step.exit is not None:
            self._features = outputs[:-1]
            if self.leaving:
                self._let_go(confidence(logits) >= step.exit.threshold)
        now_s = time.perf_counter()
        if whole:
            self.taken_ms.append((now_s - self._began_s) * 1e3)
        self._began_s = now_s
        return True

    def _let_go(self, sure: npt.NDArray[np.bool_]) -> None:
        if sure.any():
            self.rest = self.rest[~sure]
            self._features = [feature[~sure] for feature in self._features]
