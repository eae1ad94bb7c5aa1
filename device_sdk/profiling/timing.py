"""Latency of calls: medians with spread, competitors interleaved.

On a shared machine the speed drifts; competitors that take turns meet the same drift, so their ratio holds. Every turn
begins with a call that does not count: a deployed model finds the caches as it left them itself, not full of its
competitors' weights (measured: an int8 subnet of ResNet-56 that takes 0.39 of the full model's time by itself took 0.47
among ten). Calls that the system interrupted for another process count for p95 only: long calls are interrupted more
often than short ones, so sums of short ones would not tell what a long one takes (measured with three processes per
core: 2.6 times too little). Where nearly all were interrupted, the quickest stand for the others. A clock that was set
back or stands still gives no latency at all.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from device_sdk.errors import MeasurementError

NANOSECONDS_PER_MS = 1_000_000

Clock = Callable[[], int]  # nanoseconds
Counter = Callable[[], int]

_LEAST_UNDISTURBED = 3  # calls; with fewer, the quickest of all count
_QUICKEST = 0.1  # of all calls
_LEAST_VALID = 0.5  # more than this share of the timed calls has a duration above zero, so that the median has
_CHECK_EVERY = 5  # rounds
_ERROR_PER_QUARTILES = 0.93  # standard error of a median = 0.93 · (p75 − p25) / √runs, for a normal distribution
_SETTLED_SHARE = 0.9  # of the calls have to have a median that is known well


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop before the last round.

    ``precision``: after ``rounds``, once 90 % of the medians have a standard error below this share of themselves;
    ``limit_s``: once this much time has passed, but never before ``least`` rounds (``rounds`` unless it is given).
    """

    rounds: int
    precision: float
    limit_s: float
    least: int | None = None

    def shared_by(self, count: int) -> Patience:
        """The patience with each of ``count`` groups that share the time."""
        return msgspec.structs.replace(self, limit_s=self.limit_s / count)


def interruptions() -> int:
    """How often the system has taken the processor from this thread for another one; 0 where it does not tell."""
    return resource.getrusage(_WHO).ru_nivcsw if _WHO is not None else 0


_WHO: int | None = getattr(resource, "RUSAGE_THREAD", None)  # Linux


class _Samples:
    """The durations of one call, and which of them were interrupted."""

    def __init__(self) -> None:
        self._undisturbed_ns: list[int] = []
        self._all_ns: list[int] = []

    def add(self, elapsed_ns: int, *, interrupted: bool) -> None:
        if elapsed_ns < 0:  # the clock was set back meanwhile
            return
        self._all_ns.append(elapsed_ns)
        if not interrupted:
            self._undisturbed_ns.append(elapsed_ns)

    @property
    def counting_ns(self) -> list[int]:
        """Those that medians are made of."""
        if len(self._undisturbed_ns) >= min(_LEAST_UNDISTURBED, len(self._all_ns)):
            return self._undisturbed_ns
        return sorted(self._all_ns)[: max(_LEAST_UNDISTURBED, round(_QUICKEST * len(self._all_ns)))]

    def relative_error(self) -> float:
        """The standard error of the median, as a share of it."""
        if not self._all_ns:
            return math.inf
        low, median, high = np.percentile(self.counting_ns, [25, 50, 75])
        error = _ERROR_PER_QUARTILES * (high - low) / len(self.counting_ns) ** 0.5
        return float(error / median) if median > 0 else math.inf

    def latency(self, *, wanted: int) -> Latency:
        valid = sum(1 for one in self._all_ns if one > 0)
        if valid <= _LEAST_VALID * wanted:
            raise MeasurementError(
                f"only {valid} of {wanted} timed calls took any time: the clock stood still or was set back",
                hint="measure again when nothing sets this device's clock",
            )
        quartiles = np.percentile(np.asarray(self.counting_ns, dtype=np.float64) / NANOSECONDS_PER_MS, [25, 50, 75])
        p25_ms, median_ms, p75_ms = (float(value) for value in quartiles)
        p95_ms = max(p75_ms, float(np.percentile(self._all_ns, 95)) / NANOSECONDS_PER_MS)
        return Latency(median_ms=median_ms, p95_ms=p95_ms, p25_ms=p25_ms, p75_ms=p75_ms, runs=len(self._all_ns))


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long one call takes, over ``runs`` timed calls.

    Half of those that the system did not interrupt lie from ``p25_ms`` to ``p75_ms``; ``p95_ms`` is over all.
    """

    median_ms: float
    p95_ms: float
    p25_ms: float
    p75_ms: float
    runs: int


def measure(
    call: Callable[[], object],
    *,
    runs: int,
    warmup: int,
    clock: Clock = time.perf_counter_ns,
) -> Latency:
    """Time ``runs`` calls after ``warmup`` calls that do not count. The call returns when its work is done.

    Raises:
        ValueError: ``runs`` is below 1 or ``warmup`` is negative.
    """
    return measure_interleaved({"": call}, rounds=runs, warmup=warmup, clock=clock)[""]


def measure_interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int,
    patience: Patience | None = None,
    on_round: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter_ns,
    interruptions: Counter = interruptions,
) -> dict[str, Latency]:
    """Time competitors in turns: each has one turn per round, in an order that is another one every round.

    The order rotates, so that everyone starts equally often, and every second rotation runs backwards, so that nobody
    always follows the same neighbour. Where there are several, each is called twice in its turn and the second call
    timed. With ``patience`` fewer than ``rounds`` may do. ``on_round`` is called after each round, warm-up included.

    Raises:
        ValueError: ``rounds`` is below 1 or ``warmup`` is negative.
        MeasurementError: the clock stood still, or was set back more often than not.
    """
    if rounds < 1 or warmup < 0:
        raise ValueError(f"needs at least 1 round and no negative warm-up, got {rounds} and {warmup}")
    samples = {name: _Samples() for name in calls}
    began_ns, timed_rounds = clock(), 0
    for index in range(-warmup, rounds):
        if patience is not None and _is_enough(index, patience, samples, elapsed_s=(clock() - began_ns) / 1e9):
            break
        for name in _order(list(calls), index):
            call = calls[name]
            if len(calls) > 1 and index >= 0:
                call()
            before, started_ns = interruptions(), clock()
            call()
            elapsed_ns = clock() - started_ns
            if index >= 0:
                samples[name].add(elapsed_ns, interrupted=interruptions() != before)
        timed_rounds += index >= 0
        on_round()
    return {name: one.latency(wanted=timed_rounds) for name, one in samples.items()}


def _is_enough(index: int, patience: Patience, samples: Mapping[str, _Samples], *, elapsed_s: float) -> bool:
    least = patience.rounds if patience.least is None else patience.least
    if index >= max(least, 1) and elapsed_s >= patience.limit_s:
        return True
    if index < max(patience.rounds, 1) or index % _CHECK_EVERY or not samples:
        return False
    errors = sorted(one.relative_error() for one in samples.values())
    return errors[int(_SETTLED_SHARE * (len(errors) - 1))] <= patience.precision


def _order(names: Sequence[str], index: int) -> list[str]:
    turn, start = divmod(index, max(len(names), 1))
    rotated = [*names[start:], *names[:start]]
    return rotated[::-1] if turn % 2 else rotated
