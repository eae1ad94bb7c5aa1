"""When a running subnet gives way to another one of the pool: pure decisions on measured service times.

Source: AdaptiveNet §5.3: with the drift ratio r = actual / estimated latency, the best subnet is the most accurate one
whose estimated latency is within T / r; down when the budget T is exceeded, up when there is room. Ours are the
hysteresis (a candidate has to fit with a margin), the cooldowns, that a slight excess has to last, since noise passes,
and that going up takes more evidence: while other processes take the core in slices, most short calls are as quick as
ever and only a few are slow, so the median promises what longer calls cannot keep. Their mean does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from device_sdk.errors import UsageError
from device_sdk.execution.service_times import KEPT
from device_sdk.search.port import Candidate, best_within
from device_sdk.supernet.cost import MB, Budget

Why = Literal["slower", "faster"]


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """How eager live update is. Times are seconds of a monotonic clock.

    ``window``: the calls whose median counts; ``up_window``: those that must agree before a slower subnet is taken.
    ``tolerance``: latencies this close to the budget are equal to it. An excess of up to ``slight_excess`` of the
    budget must be the median of calls that together took ``slight_s``; a larger one counts after a ``window``.
    ``margin``: what a candidate must have to spare.
    ``up_cooldown_s`` doubles, up to ``up_cooldown_max_s``, whenever a switch up had to be taken back soon.
    ``absurd_ratio``: calls that took this many times the estimate, as after a suspension, are not looked at.
    ``warm_bytes``: what plans that are kept ready ahead may take. ``search_cooldown_s`` and ``search_time_limit_s`` are
    those of searches in the background.

    Raises:
        UsageError: a window of nothing, or a margin that leaves nothing.
    """

    window: int = 5
    up_window: int = 20
    tolerance: float = 0.02
    slight_excess: float = 0.25
    slight_s: float = 0.25
    margin: float = 0.02
    cooldown_s: float = 0.1
    up_cooldown_s: float = 0.2
    up_cooldown_max_s: float = 1.0
    absurd_ratio: float = 100.0
    warm_bytes: int = 64_000_000
    search_cooldown_s: float = 60.0
    search_time_limit_s: float = 30.0

    def __post_init__(self) -> None:
        if self.window < 1 or self.up_window < 1:
            raise UsageError("live update needs at least one call to judge by")
        if not 0 <= self.margin < 1:
            raise UsageError(f"the margin is {self.margin:g}; it must lie between 0 and 1")


@dataclass(frozen=True)
class LastSwitch:
    """When the subnet was exchanged last, whether for a slower one, and how long to wait before going up again."""

    at_s: float = -math.inf
    up: bool = False
    up_cooldown_s: float = 0.0

    def waited_s(self, now_s: float) -> float:
        """Seconds since then; infinite after the clock went backwards."""
        waited_s = now_s - self.at_s
        return waited_s if waited_s >= 0 else math.inf

    def followed_by(self, why: Why, *, now_s: float, settings: LiveSettings) -> LastSwitch:
        """The switch that comes now. One down soon after one up doubles the wait, one long after it resets it."""
        wait_s = max(self.up_cooldown_s, settings.up_cooldown_s)
        if why == "slower" and self.up:
            soon = self.waited_s(now_s) < 2 * wait_s
            wait_s = min(2 * wait_s, settings.up_cooldown_max_s) if soon else settings.up_cooldown_s
        return replace(self, at_s=now_s, up=why == "faster", up_cooldown_s=wait_s)


@dataclass(frozen=True)
class Decision:
    """What to do. ``target``: run this candidate from now on, or None: stay.

    ``ratio``: the drift ratio r; ``why``: the device became slower or faster; ``fits``: whether the pool has anything
    for the budget at this ratio: if not, the target is the fastest there is, and a new search may help.
    """

    target: Candidate | None
    ratio: float
    service_ms: float
    why: Why = "slower"
    fits: bool = True


def decide(
    *,
    current: Candidate,
    pool: Sequence[Candidate],
    budget: Budget,
    service_ms: Sequence[float],
    now_s: float,
    last: LastSwitch,
    settings: LiveSettings,
) -> Decision | None:
    """Whether another candidate should run, by the ``service_ms`` of the last calls of ``current``, the oldest first.

    ``pool``: what could be run now, with the latencies that the calibration estimated. None: too little is known, or
    it is too soon after the last switch.
    """
    assert budget.latency_ms is not None
    calls = plausible(service_ms, current, settings)
    if len(calls) < settings.window:
        return None
    recent_ms = float(np.median(calls[-settings.window :]))
    ratio = recent_ms / current.cost.latency_ms
    waited_s = last.waited_s(now_s)
    if recent_ms > budget.latency_ms * (1 + settings.tolerance):
        if waited_s < settings.cooldown_s:
            return None
        if _is_lasting(calls, budget.latency_ms, settings):
            return _down(current, pool, budget, ratio, recent_ms, settings)
    if len(calls) >= settings.up_window and waited_s >= max(last.up_cooldown_s, settings.up_cooldown_s):
        lately = calls[-settings.up_window :]
        slowest = max(ratio, float(np.mean(lately)) / current.cost.latency_ms)
        better = best_within(pool, scaled(budget, slowest, settings))
        if better is not None and better.expected_accuracy > current.expected_accuracy:
            return Decision(better, slowest, recent_ms, why="faster")
    return Decision(None, ratio, recent_ms)


def _is_lasting(calls_ms: Sequence[float], limit_ms: float, settings: LiveSettings) -> bool:
    """Whether calls exceed the limit clearly, or slightly and for ``slight_s``."""
    if np.median(calls_ms[-settings.window :]) > limit_ms * (1 + settings.slight_excess):
        return True
    taken_ms, count = 0.0, 0
    for count, call_ms in enumerate(reversed(calls_ms), start=1):  # the count at which the loop ends
        taken_ms += call_ms
        if taken_ms >= 1e3 * settings.slight_s and count >= settings.window:
            break
    is_known = taken_ms >= 1e3 * settings.slight_s or count >= KEPT
    return is_known and bool(np.median(calls_ms[-count:]) > limit_ms * (1 + settings.tolerance))


def _down(
    current: Candidate,
    pool: Sequence[Candidate],
    budget: Budget,
    ratio: float,
    recent_ms: float,
    settings: LiveSettings,
) -> Decision:
    fitting = best_within(pool, scaled(budget, ratio, settings))
    if fitting is not None:
        return Decision(fitting, ratio, recent_ms)
    faster = [one for one in pool if one.cost.latency_ms < current.cost.latency_ms and budget.fits_memory(_peak(one))]
    fastest = min(faster, key=lambda one: one.cost.latency_ms, default=None)
    return Decision(fastest, ratio, recent_ms, fits=False)


def plausible(service_ms: Sequence[float], current: Candidate, settings: LiveSettings) -> list[float]:
    """The service times that a call of ``current`` can have taken: clocks jump, and machines are suspended."""
    most_ms = settings.absurd_ratio * current.cost.latency_ms
    return [one for one in service_ms if 0 < one <= most_ms]


def scaled(budget: Budget, ratio: float, settings: LiveSettings) -> Budget:
    """What fits ``budget`` with the margin to spare while everything takes ``ratio`` times its estimate: T / r."""
    assert budget.latency_ms is not None
    return Budget(latency_ms=budget.latency_ms * (1 - settings.margin) / ratio, memory_mb=budget.memory_mb)


def bounds_ms(
    current: Candidate, pool: Sequence[Candidate], budget: Budget, settings: LiveSettings
) -> tuple[float, float]:
    """Service times of ``current`` between these two give no reason to decide anything."""
    assert budget.latency_ms is not None
    better = [
        one.cost.latency_ms
        for one in pool
        if one.expected_accuracy > current.expected_accuracy and budget.fits_memory(_peak(one))
    ]
    room_ms = scaled(budget, 1.0, settings).latency_ms or 0.0
    low_ms = room_ms * current.cost.latency_ms / min(better) if better else 0.0
    return low_ms, budget.latency_ms * (1 + settings.tolerance)


def beside(current: Candidate, pool: Sequence[Candidate], budget: Budget) -> list[Candidate]:
    """Those of ``pool`` that fit the memory budget beside ``current``, which serves until they are ready."""
    if budget.memory_mb is None:
        return list(pool)
    return [one for one in pool if _peak(one) + _peak(current) <= budget.memory_mb * MB]


def likely_next(
    current: Candidate, pool: Sequence[Candidate], budget: Budget, ratio: float, settings: LiveSettings
) -> list[Candidate]:
    """What probably comes next, the likeliest first: the device twice as slow as now, a little slower, as calibrated.

    Worth preparing ahead, so that a switch is nothing but the exchange.
    """
    ratios = (2 * ratio, 1.4 * ratio, 1.0, 3 * ratio)
    found = [best_within(pool, scaled(budget, one, settings)) for one in ratios]
    fastest = min(pool, key=lambda one: one.cost.latency_ms, default=None)
    named = {one.subnet: one for one in (*found, fastest) if one is not None and one.subnet != current.subnet}
    return list(named.values())


def _peak(candidate: Candidate) -> int:
    return candidate.cost.peak_bytes
