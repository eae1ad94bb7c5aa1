"""The cause of a slower device: heat, the load of others, a power mode, or one home alone. Pure.

Throttling and power modes last, the load of others passes: live update treats them differently.
"""

from __future__ import annotations

from typing import Literal

from device_sdk.profiling.speed_reading import SpeedReading

Cause = Literal["throttled", "load", "power_mode", "home", "unknown"]

LASTING: frozenset[Cause] = frozenset({"throttled", "power_mode", "home"})
"""Causes that do not pass within seconds. ``home``: a provider is slow while the processor keeps its speed."""

_MODERATE = 2  # Android's thermal status from which on it slows apps down
_LOWER_LIMIT = 0.95  # of the allowed frequency before
_LOWER_FREQUENCY = 0.85  # of the frequency before: turbo frequencies vary by some percent
_WAITED_SHARE = 0.1  # of the time that threads wanted a core
_OTHERS_CORES = 0.5


def lasting_cause(before: SpeedReading, now: SpeedReading) -> Cause:
    """``power_mode`` or ``throttled`` where the system itself says so, against the reading ``before``; or unknown."""
    if (now.saving and not before.saving) or now.power_mode != before.power_mode:
        return "power_mode"
    hotter = now.thermal_status is not None and now.thermal_status > (before.thermal_status or 0)
    if hotter and (now.thermal_status or 0) >= _MODERATE:
        return "throttled"
    if set(now.held_back) - set(before.held_back) or _fell(now.limit_share, before.limit_share, _LOWER_LIMIT):
        return "throttled"
    return "unknown"


def slow_cause(before: SpeedReading, recent: SpeedReading, now: SpeedReading) -> Cause:
    """The cause by three readings: ``before`` it was slow, and two while it is.

    A lower frequency alone counts as throttling only where others do not take the processor: turbo frequencies fall
    when more cores are busy.
    """
    stated = lasting_cause(before, now)
    if stated != "unknown":
        return stated
    if (now.throttles or 0) > (recent.throttles or 0) and recent.throttles is not None:
        return "throttled"
    if (waited_share(recent, now) or 0) >= _WAITED_SHARE or (others_cores(recent, now) or 0) >= _OTHERS_CORES:
        return "load"
    return "throttled" if _fell(now.frequency_mhz, before.frequency_mhz, _LOWER_FREQUENCY) else "unknown"


def waited_share(recent: SpeedReading, now: SpeedReading) -> float | None:
    """Of the time that threads of this process wanted a core, the share that they waited for one; None if unknown."""
    run_ns, waited_ns = _grew(recent.run_ns, now.run_ns), _grew(recent.waited_ns, now.waited_ns)
    if run_ns is None or waited_ns is None or run_ns + waited_ns == 0:
        return None
    return waited_ns / (run_ns + waited_ns)


def others_cores(recent: SpeedReading, now: SpeedReading) -> float | None:
    """Cores that other processes kept busy between two readings; None if unknown."""
    busy, total = _grew(recent.busy_ticks, now.busy_ticks), _grew(recent.total_ticks, now.total_ticks)
    own = _grew(recent.own_ticks, now.own_ticks)
    if busy is None or own is None or not total:
        return None
    return max(0, busy - own) * now.cores / total


def _grew(earlier: int | None, later: int | None) -> int | None:
    """The growth of a count; None where it is unknown or was set back, as when threads have ended."""
    return None if earlier is None or later is None or later < earlier else later - earlier


def _fell(now: float | None, before: float | None, share: float) -> bool:
    return now is not None and before is not None and now < share * before
