"""Answers by a deadline and at any time: the plan in use exit by exit, on this device alone."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from device_sdk.bundles.manifest import Task
from device_sdk.errors import InfeasibleDeadlineError, PathweaveError, UsageError
from device_sdk.execution.outcome import Outcome
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.execution.running_calls import PlanRetired
from device_sdk.execution.stepped_plan import StepTimes, last_in_time
from device_sdk.runtimes.port import Array, StopSignal
from device_sdk.session.answer import ABSTAINED, FALLBACK, SUBNET, Answer, Running
from device_sdk.supernet.deciders.port import hard as hard_samples
from device_sdk.supernet.plan import Abstain, AnswerLocally, Cascade, Plan

_IDLE_S = 1.0  # after which the thread ends


class Alarm:
    """``at`` may be called from any thread. Times are those of ``time.perf_counter``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._waiting: list[tuple[float, int, StopSignal]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, time_s: float, signal: StopSignal) -> None:
        """Set ``signal`` at ``time_s``. One that is set before, because it is no longer needed, is forgotten."""
        with self._changed:
            first = not self._waiting or time_s < self._waiting[0][0]
            heapq.heappush(self._waiting, (time_s, next(self._numbers), signal))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._ring, name="pathweave-deadline", daemon=True)
                self._thread.start()
            elif first:
                self._changed.notify()

    def close(self) -> None:
        """End the thread; what waits is not set any more. May be called twice."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _ring(self) -> None:
        idle_since_s = time.perf_counter()
        while True:
            with self._changed:
                now_s = time.perf_counter()
                if self._waiting:
                    idle_since_s = now_s
                if self._closed or now_s - idle_since_s >= _IDLE_S:
                    self._thread = None
                    return
                next_s = self._waiting[0][0] if self._waiting else idle_since_s + _IDLE_S
                self._changed.wait(min(max(next_s - now_s, 0.0), _IDLE_S))
                due = self._due(time.perf_counter())
            for signal in due:
                signal.set()

    def _due(self, now_s: float) -> list[StopSignal]:
        due = []
        while self._waiting and (self._waiting[0][0] <= now_s or self._waiting[0][2].is_set):
            due.append(heapq.heappop(self._waiting)[2])
        return due


_MEASURE_AGAIN_S = 0.05  # at most so often, while deadlines are refused
_LIVE_CALLS = 5  # whose median says how slow the device is


class TimedAnswers:
    """Runs the plan in use with a deadline, or until it is stopped. Nothing is sent to a server."""

    def __init__(self, in_use: PlanInUse, task: Task) -> None:
        self._in_use, self._task = in_use, task
        self._alarm = Alarm()
        self._lock = threading.Lock()  # guards the next
        self._measure_again_s = 0.0

    def prepare(self, tensor: Array) -> None:
        """Measure the steps of the plan in use for batches like ``tensor``, and those of later plans when they load."""
        self._times(self._in_use.running(), tensor)

    def answer_times_ms(self, tensor: Array) -> dict[str, float]:
        """By source (``exit <id>``, ``subnet``): how long after its start a run is sure to have that answer now."""
        active = self._in_use.running()
        times = self._times(active, tensor)
        names = [_source(active.plan, step.number) for step in active.loaded.stepped().steps]
        return dict(zip(names, times.answer_times_ms(_present_slowness(active, times)), strict=True))

    def by_deadline(self, tensor: Array, deadline_ms: float, *, began_s: float) -> Answer:
        """The answer of the last exit, or of the end, that is sure to be there ``deadline_ms`` after ``began_s``.

        1. measure the steps if that was not done yet (then the time begins anew); 2. choose the step to end with;
        3. run up to it. If it turns out slower than expected, it ends with the step before.

        Raises:
            InfeasibleDeadlineError: not even the first exit is sure to be in time; says the least deadline.
            UsageError: the deadline is not above 0.
        """
        if not deadline_ms > 0:
            raise UsageError(f"the deadline is {deadline_ms:g} ms; it must be above 0")
        active = self._in_use.running()
        while True:
            try:
                return self._by_deadline(active, tensor, deadline_ms, began_s)
            except PlanRetired:
                active = self._in_use.instead_of(active)

    def _by_deadline(self, active: Active, tensor: Array, deadline_ms: float, began_s: float) -> Answer:
        known = len(tensor) in active.loaded.stepped().measured_batches
        times = self._times(active, tensor)
        if not known:
            began_s = time.perf_counter()
        sure_ms = times.answer_times_ms(_present_slowness(active, times))
        steps_ms = [sure_ms[0], *(after - before for before, after in pairwise(sure_ms))]
        started_s = time.perf_counter()
        spent_ms = (started_s - began_s) * 1e3
        last = last_in_time(sure_ms, deadline_ms - spent_ms)
        if last is None:
            self._measure_again(active, tensor)
            least_ms = sure_ms[0] + spent_ms
            raise InfeasibleDeadlineError(
                f"no answer is sure to be there within {deadline_ms:.2f} ms: the first takes up to {least_ms:.2f} ms",
                least_ms=least_ms,
                hint="allow more, or calibrate the plan with earlier exits",
            )
        guard = _Guard(self._alarm, began_s + deadline_ms / 1e3, steps_ms)
        stepped = active.loaded.stepped()
        try:
            outcome = stepped.run(tensor, last=last, stop=guard.stop, may_begin=guard.may_begin, settle=True)
        finally:
            guard.stop.set()  # so that the alarm forgets it
        assert outcome is not None
        return self._answer(active.plan, outcome, started_s)

    def close(self) -> None:
        """End the threads. May be called twice."""
        self._alarm.close()

    def _measure_again(self, active: Active, tensor: Array) -> None:
        """In the background, now and then: what is refused leaves no times, and the device may be faster by now."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._measure_again_s:
                return
            self._measure_again_s = now_s + _MEASURE_AGAIN_S

        def measure() -> None:
            with contextlib.suppress(PathweaveError, PlanRetired):  # whoever asks next meets it too
                active.loaded.stepped().measure_again(tensor)

        threading.Thread(target=measure, name="pathweave-measure", daemon=True).start()

    def start(self, tensor: Array) -> Running:
        """Begin an anytime run."""
        self._in_use.running()
        return Running(lambda stop, answered: self._run(tensor, stop, answered))

    def _run(self, tensor: Array, stop: StopSignal, answered: Callable[[Answer], None]) -> None:
        active = self._in_use.running()
        reached = 0
        while True:
            steps = _Steps(reached, answered, partial(self._answer, active.plan, started_s=time.perf_counter()))
            try:
                active.loaded.stepped().run(tensor, stop=stop, answered=steps.take)
                return
            except PlanRetired:
                reached = steps.reached
                active = self._in_use.instead_of(active)

    def _times(self, active: Active, tensor: Array) -> StepTimes:
        self._in_use.time_batch(len(tensor))
        return active.loaded.stepped().times(tensor)

    def _answer(self, plan: Plan, outcome: Outcome, started_s: float) -> Answer:
        latency_ms = (time.perf_counter() - started_s) * 1e3
        return Answer(outcome.output, _sources(plan, outcome), latency_ms, self._task, plan)


class _Steps:
    """Passes the answers of an anytime run on; of one that began again those alone that are not behind the best."""

    def __init__(self, reached: int, answered: Callable[[Answer], None], made: Callable[[Outcome], Answer]) -> None:
        self.reached = reached
        self._answered, self._made = answered, made
        self._number = 0

    def take(self, outcome: Outcome) -> None:
        self._number += 1
        if self._number >= self.reached:
            self.reached = self._number
            self._answered(self._made(outcome))


class _Guard:
    """Ends a run that is slower than expected, once it has an answer.

    ``steps_ms``: what each step is sure to need at most.
    """

    def __init__(self, alarm: Alarm, until_s: float, steps_ms: Sequence[float]) -> None:
        self.stop = StopSignal()
        self._alarm, self._until_s, self._steps_ms = alarm, until_s, steps_ms
        self._armed = False

    def may_begin(self, step: int) -> bool:
        """True if ``step`` will end in time; from the first step on, the alarm ends one that does not."""
        if time.perf_counter() + self._steps_ms[step] / 1e3 > self._until_s:
            return False
        if not self._armed:
            self._armed = True
            self._alarm.at(self._until_s, self.stop)
        return True


def _present_slowness(active: Active, times: StepTimes) -> float | None:
    """Slowdown of ordinary calls as live update sees it, against the typical time to the end; None while it is off."""
    calls_ms = [] if active.times is None else active.times.last()[-_LIVE_CALLS:]
    return float(np.median(calls_ms)) / sum(times.typical_ms) if len(calls_ms) == _LIVE_CALLS else None


def _source(plan: Plan, number: int) -> str:
    if number < len(plan.exits):
        return f"exit {plan.exits[number].exit}"
    return SUBNET if plan.split is None else FALLBACK


def _sources(plan: Plan, outcome: Outcome) -> tuple[str, ...]:
    """Source of each answer; hard samples at the end are answered as the plan says without its server."""
    sources = [_source(plan, number) for number in outcome.answered_by]
    if not isinstance(plan.hard, AnswerLocally | Cascade):  # a cascade ends with its first path here
        mark = ABSTAINED if isinstance(plan.hard, Abstain) else FALLBACK
        at_end = outcome.answered_by == len(plan.exits)
        for position in np.flatnonzero(at_end & hard_samples(plan.hard.decider, outcome.output)):
            sources[position] = mark
    return tuple(sources)
