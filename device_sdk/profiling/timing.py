"""Latency of calls: medians with spread, competitors interleaved.

On a shared machine the speed drifts; competitors that take turns meet the same drift, so their ratio holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

NANOSECONDS_PER_MS = 1_000_000

Clock = Callable[[], int]  # nanoseconds


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long one call takes, over ``runs`` timed calls; half of them lie from ``p25_ms`` to ``p75_ms``."""

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
    clock: Clock = time.perf_counter_ns,
) -> dict[str, Latency]:
    """Time competitors in turns: each is called once per round, in an order that is another one every round.

    The order rotates, so that everyone starts equally often, and every second turn runs backwards, so that
    nobody always follows the same neighbour.

    Raises:
        ValueError: ``rounds`` is below 1 or ``warmup`` is negative.
    """
    if rounds < 1 or warmup < 0:
        raise ValueError(f"needs at least 1 round and no negative warm-up, got {rounds} and {warmup}")
    samples_ns: dict[str, list[int]] = {name: [] for name in calls}
    for index in range(-warmup, rounds):
        for name in _order(list(calls), index):
            call = calls[name]
            started_ns = clock()
            call()
            elapsed_ns = clock() - started_ns
            if index >= 0:
                samples_ns[name].append(elapsed_ns)
    return {name: _summary(samples) for name, samples in samples_ns.items()}


def _order(names: Sequence[str], index: int) -> list[str]:
    turn, start = divmod(index, max(len(names), 1))
    rotated = [*names[start:], *names[:start]]
    return rotated[::-1] if turn % 2 else rotated


def _summary(samples_ns: Sequence[int]) -> Latency:
    quartiles = np.percentile(np.asarray(samples_ns, dtype=np.float64) / NANOSECONDS_PER_MS, [25, 50, 75, 95])
    p25_ms, median_ms, p75_ms, p95_ms = (float(value) for value in quartiles)
    return Latency(median_ms=median_ms, p95_ms=p95_ms, p25_ms=p25_ms, p75_ms=p75_ms, runs=len(samples_ns))
