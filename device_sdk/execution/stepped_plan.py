"""A plan that runs step by step, up to the next answer: how long each takes, and the last that is in time."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.execution.loaded_segments import LoadedSegments
from device_sdk.execution.outcome import Answers, Outcome
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.running_calls import PlanRetired, RunningCalls
from device_sdk.runtimes.port import Array, LoadedStretch, StopSignal
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import ExitChoice

QUANTILE = 0.99  # of the times of earlier runs: a deadline is kept this often
RECENT_RUNS = 9  # whose median says how slow the device is now


def slowness(runs_ms: Sequence[Sequence[float]], typical_ms: Sequence[float]) -> float:
    """Slowdown of the last runs against ``typical_ms``: the upper median of their ratios; 1 without runs.

    ``runs_ms``: per run, the oldest first, the milliseconds of its first steps, at least one.
    """
    ratios = sorted(sum(run) / sum(typical_ms[: len(run)]) for run in runs_ms[-RECENT_RUNS:])
    return ratios[len(ratios) // 2] if ratios else 1.0


def answer_times_ms(
    runs_ms: Sequence[Sequence[float]],
    typical_ms: Sequence[float],
    *,
    present_slowness: float | None = None,
    quantile: float = QUANTILE,
) -> list[float]:
    """Milliseconds from the start within which each step answers, in all but ``1 - quantile`` of the runs.

    Steps that a run did not reach count as ``typical_ms`` times the ``slowness`` of the runs. ``present_slowness``:
    that of ordinary calls; if it is above that of the runs, all times are scaled by the ratio of the two.
    """
    now = slowness(runs_ms, typical_ms)
    scale = 1.0 if present_slowness is None else max(1.0, present_slowness / now)
    if not runs_ms:
        return [scale * float(one) for one in np.cumsum(typical_ms)]
    whole = np.tile(now * np.asarray(typical_ms, dtype=np.float64), (len(runs_ms), 1))
    for row, run in zip(whole, runs_ms, strict=True):
        row[: len(run)] = run
    rank = max(math.ceil(quantile * len(runs_ms)) - 1, 0)
    return [scale * float(one) for one in np.sort(np.cumsum(whole, axis=1), axis=0)[rank]]


def last_in_time(times_ms: Sequence[float], deadline_ms: float) -> int | None:
    """The last step that answers within ``deadline_ms``; None if not even the first does."""
    found = None
    for number, time_ms in enumerate(times_ms):
        if time_ms <= deadline_ms:
            found = number
    return found


KEPT_RUNS = 128  # at most
KEPT_S = 2.0  # older ones go, but for the last RECENT_RUNS


class StepTimes:
    """The times of the last runs of one batch size. ``typical_ms``: of each step, when it was measured. Thread-safe."""

    def __init__(self, typical_ms: Sequence[float], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.typical_ms = tuple(typical_ms)
        self._clock = clock
        self._lock = threading.Lock()  # guards the next
        self._runs: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=KEPT_RUNS)

    def record(self, run_ms: Sequence[float]) -> None:
        """Record the times of a run's first steps; a run that ended before its first answer is ignored."""
        if run_ms:
            with self._lock:
                self._runs.append((self._clock(), tuple(run_ms)))

    def slowness(self) -> float:
        """See ``deadline.slowness``."""
        return slowness(self._last(), self.typical_ms)

    def answer_times_ms(self, present_slowness: float | None = None) -> list[float]:
        """See ``deadline.answer_times_ms``."""
        return answer_times_ms(self._last(), self.typical_ms, present_slowness=present_slowness)

    def _last(self) -> list[tuple[float, ...]]:
        with self._lock:
            oldest_s = self._clock() - KEPT_S
            while len(self._runs) > RECENT_RUNS and self._runs[0][0] < oldest_s:
                self._runs.popleft()
            return [run_ms for _, run_ms in self._runs]


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
            # a cascade's second path, which is no step, is loaded behind them
            for number, (segment, stretch) in enumerate(zip(found, loaded.stretches, strict=False))
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
