"""Sustained speed: a call repeated for a minute or more, its latency at first and at last, and why they differ."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec
import numpy as np

from device_sdk.errors import MeasurementError, UsageError
from device_sdk.profiling.slow_cause import others_cores, slow_cause
from device_sdk.profiling.speed_reading import SpeedReading, SpeedSignals, Zone
from device_sdk.profiling.timing import NANOSECONDS_PER_MS, Clock
from device_sdk.progress import Progress, SilentProgress, Task

SUSTAINED_FORMAT = 1
LEAST_S, MOST_S = 2.0, 24 * 3600.0
_STAGE_SHARE, _LONGEST_STAGE_S = 0.1, 60.0
_SAMPLE_S = 1.0
_MOST_SAMPLES = 3600  # of longer runs each sample spans more seconds
_SMOOTHED = 5  # samples whose median counts as one
_NS_PER_S = 1_000_000_000
_MOST_STILL = 100_000  # calls that took no time
STEADY_RATIO, SETTLED_RATIO = 1.05, 1.05

Outcome = Literal["steady", "throttled", "load", "power_mode", "home", "unknown"]


class SustainedSample(msgspec.Struct, frozen=True, kw_only=True):
    """One second (or more, in a run of over an hour) that ended ``at_s`` after the beginning.

    ``others_cores``: that other processes kept busy in it; None where the system does not tell, as the others.
    """

    at_s: float
    calls: int
    median_ms: float
    p95_ms: float
    hottest_c: float | None = None
    frequency_mhz: float | None = None
    limit_share: float | None = None
    throttles: int | None = None
    held_back: tuple[str, ...] = ()
    others_cores: float | None = None


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The first or the last tenth of a run, a minute at most, and the thermal zones at its end, the hottest first."""

    seconds: float
    calls: int
    mean_ms: float
    median_ms: float
    p95_ms: float
    zones: tuple[Zone, ...] = ()


class SustainedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``measure_sustained``: one plan, called again and again.

    ``sustained_over_first``: ratio of the medians of the last and the first stage. ``settled_s``: from when on the
    latency stayed within 5 % of the last; None if only in the last stage. ``outcome``: ``steady`` where medians and
    means differ by less than 5 %, else the cause: processes that take the core in slices slow few of many short calls.
    """

    bundle: str
    runtime: str
    plan: str
    created: str
    seconds: float
    calls: int
    first: Stage
    last: Stage
    sustained_over_first: float
    settled_s: float | None
    outcome: Outcome
    samples: tuple[SustainedSample, ...]


class _Record:
    """Durations of the calls of a run so far, its samples, and a reading of the system at the end of each."""

    def __init__(self, seconds: float, signals: SpeedSignals) -> None:
        self.seconds, self._signals = seconds, signals
        self.stage_s = min(_STAGE_SHARE * seconds, _LONGEST_STAGE_S)
        self._sample_s = max(_SAMPLE_S, seconds / _MOST_SAMPLES)
        self.calls = 0
        self.first_ns: list[int] = []
        self.last_ns: list[int] = []
        self._lately_ns: list[int] = []
        self.samples: list[SustainedSample] = []
        self.readings = [signals.read()]

    def add(self, elapsed_ns: int, *, began_s: float, ended_s: float) -> None:
        """A call between these two times since the beginning."""
        self.calls += 1
        self._lately_ns.append(elapsed_ns)
        if began_s < self.stage_s:
            self.first_ns.append(elapsed_ns)
        if ended_s >= self.seconds - self.stage_s:
            self.last_ns.append(elapsed_ns)

    def has_sample(self, at_s: float) -> bool:
        """True if it is time for a sample."""
        return at_s - (self.samples[-1].at_s if self.samples else 0.0) >= self._sample_s

    def take_sample(self, at_s: float) -> None:
        """The calls since the last sample are one, with what the system says now."""
        before, now = self.readings[-1], self._signals.read()
        median_ms, p95_ms = _median_and_p95(self._lately_ns)
        self.samples.append(
            SustainedSample(
                at_s=at_s,
                calls=len(self._lately_ns),
                median_ms=median_ms,
                p95_ms=p95_ms,
                hottest_c=now.hottest_c,
                frequency_mhz=now.frequency_mhz,
                limit_share=now.limit_share,
                throttles=now.throttles,
                held_back=now.held_back,
                others_cores=others_cores(before, now),
            )
        )
        self.readings.append(now)
        self._lately_ns.clear()

    def outcome(self, ratio: float) -> Outcome:
        """``steady``, or the cause of the slower stage: by a reading of the quicker one, and two of the slower one."""
        if 1 / STEADY_RATIO <= ratio <= STEADY_RATIO:
            return "steady"
        if ratio > 1:
            return slow_cause(self._reading(_SAMPLE_S), self._reading(self.seconds - self.stage_s), self.readings[-1])
        return slow_cause(self.readings[-1], self.readings[0], self._reading(self.stage_s))

    def _reading(self, until_s: float) -> SpeedReading:
        """The last one until then, but the very last one only if it is the only one."""
        earlier = sum(one.at_s <= until_s for one in self.samples)
        return self.readings[max(0, min(earlier, len(self.samples) - 1))]


def measure_sustained(
    call: Callable[[], object],
    *,
    seconds: float,
    signals: SpeedSignals,
    zones: Callable[[], tuple[Zone, ...]] = tuple,
    bundle: str = "",
    runtime: str = "",
    plan: str = "",
    progress: Progress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Clock = time.perf_counter_ns,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> SustainedProfile | None:
    """Repeat ``call`` for so many seconds; None if it was ``cancelled`` between two calls.

    1. call without a pause, and look at the system once a second; 2. compare the first with the last tenth, a minute
    at most each; 3. name the cause of a difference. ``bundle``, ``runtime`` and ``plan`` are noted in the result.

    Raises:
        UsageError: fewer than 2 seconds, or more than a day.
        MeasurementError: the clock stands still.
    """
    if not LEAST_S <= seconds <= MOST_S:
        hint = "give 2 s to a day; most devices slow down within a minute, if at all"
        raise UsageError(f"a sustained profile cannot take {seconds:g} s", hint=hint)
    created, record = now(), _Record(seconds, signals)
    with (progress or SilentProgress()).task("sustained", seconds) as task:
        first_zones = _repeat(call, record, zones, task, cancelled, clock)  # 1.
    if first_zones is None:
        return None
    first = _stage(record.stage_s, record.first_ns, first_zones)  # 2.
    last = _stage(record.stage_s, record.last_ns, zones())
    ratio = last.median_ms / first.median_ms
    return SustainedProfile(
        bundle=bundle,
        runtime=runtime,
        plan=plan,
        created=created.isoformat(timespec="seconds"),
        seconds=seconds,
        calls=record.calls,
        first=first,
        last=last,
        sustained_over_first=ratio,
        settled_s=settled_s(record.samples, last.median_ms, before_s=seconds - record.stage_s),
        outcome=record.outcome(max(ratio, last.mean_ms / first.mean_ms, key=lambda one: abs(math.log(one)))),  # 3.
        samples=tuple(record.samples),
    )


def _repeat(
    call: Callable[[], object],
    record: _Record,
    zones: Callable[[], tuple[Zone, ...]],
    task: Task,
    cancelled: Callable[[], bool],
    clock: Clock,
) -> tuple[Zone, ...] | None:
    """Call until the time is over; the zones at the end of the first stage, or None if it was cancelled."""
    found: tuple[Zone, ...] | None = None
    started_ns, shown_s, still = clock(), 0.0, 0
    began_s = 0.0
    while began_s < record.seconds:
        if cancelled():
            return None
        before_ns = clock()
        call()
        after_ns = clock()
        still = still + 1 if after_ns <= before_ns else 0
        if still > _MOST_STILL:
            raise MeasurementError(
                "the clock stands still", hint="measure again while nothing sets this device's clock"
            )
        ended_s = (after_ns - started_ns) / _NS_PER_S
        record.add(after_ns - before_ns, began_s=began_s, ended_s=ended_s)
        if record.has_sample(ended_s):
            record.take_sample(ended_s)
            task.advance(ended_s - shown_s)
            shown_s = ended_s
        if found is None and ended_s >= record.stage_s:
            found = zones()
        began_s = (clock() - started_ns) / _NS_PER_S
    return found or ()


def settled_s(samples: Sequence[SustainedSample], last_ms: float, *, before_s: float) -> float | None:
    """The time from which on all smoothed samples are within 5 % of ``last_ms``; None if it is not ``before_s``."""
    medians = [one.median_ms for one in samples]
    smooth = [float(np.median(medians[max(0, at - _SMOOTHED + 1) : at + 1])) for at in range(len(medians))]
    outside = [at for at, one in enumerate(smooth) if not last_ms / SETTLED_RATIO <= one <= last_ms * SETTLED_RATIO]
    from_s = samples[outside[-1]].at_s if outside else 0.0
    return from_s if from_s < before_s else None


def _stage(seconds: float, calls_ns: Sequence[int], zones: tuple[Zone, ...]) -> Stage:
    median_ms, p95_ms = _median_and_p95(calls_ns)
    mean_ms = sum(calls_ns) / len(calls_ns) / NANOSECONDS_PER_MS
    return Stage(seconds=seconds, calls=len(calls_ns), mean_ms=mean_ms, median_ms=median_ms, p95_ms=p95_ms, zones=zones)


def _median_and_p95(calls_ns: Sequence[int]) -> tuple[float, float]:
    median_ns, p95_ns = np.percentile(np.asarray(calls_ns, dtype=np.float64), [50, 95])
    return float(median_ns) / NANOSECONDS_PER_MS, float(p95_ns) / NANOSECONDS_PER_MS
