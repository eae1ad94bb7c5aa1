"""Decides when a running subnet gives way to another one of the pool, by measured service times. Pure.

Source: AdaptiveNet §5.3: with the drift ratio r = actual / estimated latency, the best subnet is the most accurate one
whose estimated latency is within T / r; down when the budget T is exceeded, up when there is room. Ours are the
hysteresis (a candidate has to fit with a margin), the cooldowns, that an excess has to add up, since noise passes,
and that going up takes more evidence: while other processes take the core in slices, most short calls are as quick as
ever and only a few are slow, so the median promises what longer calls cannot keep. Their mean does not. A cause that
lasts, such as heat, needs no further evidence to go down, and going up again waits longer; load passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from device_sdk.errors import UsageError
from device_sdk.profiling.slow_cause import LASTING, Cause
from device_sdk.search.port import Candidate, best_within
from device_sdk.supernet.cost import MB, Budget
from device_sdk.supernet.home import Home

Why = Literal["slower", "faster"]

_EXCESS_CALLS = 15


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """Settings of live update. Cooldowns are seconds of a monotonic clock.

    ``window``: the calls whose median counts; ``up_window``: those that must agree before a slower subnet is taken.
    ``tolerance``: latencies this close to the budget are equal to it. ``excess_ms``: how much above it, in all, the
    last calls must have been before a faster subnet is taken. ``margin``: what a candidate must have to spare.
    ``up_cooldown_s`` doubles, up to ``up_cooldown_max_s``, whenever a switch up had to be taken back soon; it is at
    least ``lasting_cooldown_s`` after a switch for a cause that lasts: throttling, a power mode, a slow home.
    ``absurd_ratio``: calls that took more than this many times the estimate, as after a suspension, are ignored.
    ``warm_bytes``: limit of all plans that are kept ready ahead. ``search_cooldown_s`` and ``search_time_limit_s`` are
    those of searches in the background.

    Raises:
        UsageError: a window of nothing, or a margin that leaves nothing.
    """

    window: int = 5
    up_window: int = 20
    tolerance: float = 0.02
    excess_ms: float = 30.0
    margin: float = 0.02
    cooldown_s: float = 0.1
    up_cooldown_s: float = 0.2
    up_cooldown_max_s: float = 1.0
    lasting_cooldown_s: float = 30.0
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
    """The last exchange of the subnet: its time, whether up (to a slower subnet), and the wait before the next up.

    ``cause``: of a device that had become slower, where it is known.
    """

    at_s: float = -math.inf
    up: bool = False
    up_cooldown_s: float = 0.0
    cause: Cause = "unknown"

    def waited_s(self, now_s: float) -> float:
        """Seconds since then; infinite after the clock went backwards."""
        waited_s = now_s - self.at_s
        return waited_s if waited_s >= 0 else math.inf

    def up_wait_s(self, settings: LiveSettings) -> float:
        """Seconds from this switch until the next one up may come."""
        lasting_s = settings.lasting_cooldown_s if self.cause in LASTING else 0.0
        return max(self.up_cooldown_s, settings.up_cooldown_s, lasting_s)

    def followed_by(self, why: Why, *, now_s: float, settings: LiveSettings, cause: Cause = "unknown") -> LastSwitch:
        """The switch that comes now. One down soon after one up doubles the wait, one long after it resets it."""
        wait_s = max(self.up_cooldown_s, settings.up_cooldown_s)
        if why == "slower" and self.up:
            soon = self.waited_s(now_s) < 2 * wait_s
            wait_s = min(2 * wait_s, settings.up_cooldown_max_s) if soon else settings.up_cooldown_s
        return LastSwitch(now_s, why == "faster", wait_s, cause if why == "slower" else "unknown")


@dataclass(frozen=True)
class Decision:
    """Result of ``decide``. ``target``: the candidate to run from now on; None: stay.

    ``ratio``: the drift ratio r; ``why``: the device became slower or faster; ``fits``: whether the pool has anything
    for the budget at this ratio: if not, the target is the fastest there is, and a new search may help.
    ``slow_home``: only candidates that use a home off the processor are slower than estimated.
    """

    target: Candidate | None
    ratio: float
    service_ms: float
    why: Why = "slower"
    fits: bool = True
    slow_home: bool = False

    @property
    def is_down(self) -> bool:
        """True if it is a switch to a faster candidate."""
        return self.target is not None and self.why == "slower"

    def expected_ms(self, one: Candidate) -> float:
        """The latency of a candidate while the device is as slow as it is."""
        slower = not self.slow_home or off_processor(one)
        return one.cost.latency_ms * (self.ratio if slower else 1.0)


def decide(
    *,
    current: Candidate,
    pool: Sequence[Candidate],
    budget: Budget,
    service_ms: Sequence[float],
    now_s: float,
    last: LastSwitch,
    settings: LiveSettings,
    cause: Cause = "unknown",
) -> Decision | None:
    """Choose the candidate to run by the ``service_ms`` of the last calls of ``current``, the oldest first.

    ``pool``: the candidates that could run now, with the latencies that the calibration estimated. ``cause``: of a
    slower device, where the system states it; one that lasts is believed at once, and a slow home slows only those that
    use it. Returns None if too little is known, or it is too soon after the last switch.
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
        if cause in LASTING or _is_lasting(calls, budget.latency_ms, settings):
            found = _beside_slow_home if cause == "home" else _down
            return found(current, pool, budget, ratio, recent_ms, settings)
    if len(calls) >= settings.up_window and waited_s >= last.up_wait_s(settings):
        lately = calls[-settings.up_window :]
        slowest = max(ratio, float(np.mean(lately)) / current.cost.latency_ms)
        better = best_within(pool, scaled(budget, slowest, settings))
        if better is not None and better.expected_accuracy > current.expected_accuracy:
            return Decision(better, slowest, recent_ms, why="faster")
    return Decision(None, ratio, recent_ms)


def _is_lasting(calls_ms: Sequence[float], limit_ms: float, settings: LiveSettings) -> bool:
    """True if the time above the limit has added up to more than ``excess_ms`` since some call.

    A cumulative sum test (Page).

    A call counts as at most twice the limit: a single very long one is no sign of a slower device. For short
    calls the excess of ``_EXCESS_CALLS`` calls at twice the limit suffices.
    """
    allowed_ms = limit_ms * (1 + settings.tolerance)
    excess_ms = np.minimum(np.asarray(calls_ms), 2 * allowed_ms) - allowed_ms
    return bool(np.cumsum(excess_ms[::-1]).max() > min(settings.excess_ms, _EXCESS_CALLS * allowed_ms))


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


def _beside_slow_home(
    current: Candidate,
    pool: Sequence[Candidate],
    budget: Budget,
    ratio: float,
    recent_ms: float,
    settings: LiveSettings,
) -> Decision:
    """Candidates that stay on the processor keep their estimates."""
    slow = [one for one in pool if off_processor(one)]
    kept = [one for one in pool if not off_processor(one)]
    found = [best_within(kept, scaled(budget, 1.0, settings)), best_within(slow, scaled(budget, ratio, settings))]
    best = max((one for one in found if one is not None), key=lambda one: one.expected_accuracy, default=None)
    if best is None:
        return replace(_down(current, pool, budget, ratio, recent_ms, settings), slow_home=True)
    return Decision(best, ratio, recent_ms, slow_home=True)


def off_processor(candidate: Candidate) -> bool:
    """True if the plan names a home that is not the processor for one of its edges."""
    homes = {edge.home for edge in candidate.subnet.edges if edge.home}
    return any(not Home.parse(home).on_processor for home in homes)


def is_over(current: Candidate, service_ms: Sequence[float], budget: Budget, settings: LiveSettings) -> bool:
    """True if the median of the last calls is above the budget and its tolerance."""
    assert budget.latency_ms is not None
    calls = plausible(service_ms, current, settings)[-settings.window :]
    return len(calls) == settings.window and float(np.median(calls)) > budget.latency_ms * (1 + settings.tolerance)


def plausible(service_ms: Sequence[float], current: Candidate, settings: LiveSettings) -> list[float]:
    """The service times that a call of ``current`` can have taken: clocks jump, and machines are suspended."""
    most_ms = settings.absurd_ratio * current.cost.latency_ms
    return [one for one in service_ms if 0 < one <= most_ms]


def scaled(budget: Budget, ratio: float, settings: LiveSettings) -> Budget:
    """The budget of estimates, less the margin, where actual latencies are ``ratio`` times as long: T / r."""
    assert budget.latency_ms is not None
    return Budget(latency_ms=budget.latency_ms * (1 - settings.margin) / ratio, memory_mb=budget.memory_mb)


def bounds_ms(
    current: Candidate, pool: Sequence[Candidate], budget: Budget, settings: LiveSettings
) -> tuple[float, float]:
    """Lower and upper bound of the service times of ``current`` that give no reason to switch."""
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
    """The candidates that fit the memory budget beside ``current``, which serves until they are ready."""
    if budget.memory_mb is None:
        return list(pool)
    return [one for one in pool if _peak(one) + _peak(current) <= budget.memory_mb * MB]


def likely_next(
    current: Candidate, pool: Sequence[Candidate], budget: Budget, ratio: float, settings: LiveSettings
) -> list[Candidate]:
    """Candidates that the next switch probably takes, the likeliest first.

    Those for a device 2 and 1.4 times as slow as now, as fast as calibrated, and 3 times as slow as now; then the
    fastest. Preparing them ahead reduces a switch to the exchange.
    """
    ratios = (2 * ratio, 1.4 * ratio, 1.0, 3 * ratio)
    found = [best_within(pool, scaled(budget, one, settings)) for one in ratios]
    fastest = min(pool, key=lambda one: one.cost.latency_ms, default=None)
    named = {one.subnet: one for one in (*found, fastest) if one is not None and one.subnet != current.subnet}
    return list(named.values())


def _peak(candidate: Candidate) -> int:
    return candidate.cost.peak_bytes
