"""Memory cap of a model while the system's memory shrinks and grows: pure decisions on readings.

Source: memory-elastic inference of MEEdge §3.4. Ours are the reserve that the system keeps and the hysteresis: the cap
sinks at once, and rises when there has been room for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from device_sdk.errors import UsageError
from device_sdk.memory_pressure import MemoryReading


@dataclass(frozen=True, kw_only=True)
class ElasticSettings:
    """Settings of a memory cap that follows the system's memory.

    ``reserve_bytes``: left to everything else. ``stalled_share``: share of the last ten seconds spent waiting for
    memory at which the cap sinks to ``stalled_factor`` of the memory taken. ``grow_margin``: room beyond a new
    cap, as a share of it; the cap rises when it can rise by as much again, for ``grow_after_s``. ``interval_s``:
    between two readings.

    Raises:
        UsageError: a number is out of its range.
    """

    reserve_bytes: int = 16_000_000
    stalled_share: float = 0.2
    stalled_factor: float = 0.75
    grow_margin: float = 0.1
    grow_after_s: float = 2.0
    interval_s: float = 0.05

    def __post_init__(self) -> None:
        if self.reserve_bytes < 0 or self.grow_margin < 0 or self.grow_after_s < 0:
            raise UsageError("the reserve, the margin and the wait of elastic memory cannot be negative")
        if not 0 < self.stalled_share <= 1 or not 0 < self.stalled_factor < 1 or not self.interval_s > 0:
            raise UsageError("shares of elastic memory lie between 0 and 1, and the interval is above 0")


@dataclass(frozen=True)
class CapState:
    """The cap in use, None for none, and since when there has been room for a larger one, on a monotonic clock."""

    cap_bytes: int | None
    roomy_since_s: float = math.inf


def next_cap(
    state: CapState,
    reading: MemoryReading,
    *,
    taken_bytes: int,
    most_bytes: int,
    ceiling_bytes: int | None,
    now_s: float,
    settings: ElasticSettings,
) -> CapState:
    """The cap from now on.

    Args:
        taken_bytes: of the model now; it may keep them, and take those available beyond the reserve.
        most_bytes: of the whole model: with room for it, the cap is the ceiling.
        ceiling_bytes: the user's limit; None for no limit.
    """
    room_bytes = max(0, taken_bytes + reading.available_bytes - settings.reserve_bytes)
    stalled = reading.stalled_share is not None and reading.stalled_share >= settings.stalled_share
    if stalled:
        room_bytes = min(room_bytes, round(settings.stalled_factor * taken_bytes))
    target_bytes = math.floor(room_bytes / (1 + settings.grow_margin))  # small changes of the room do not matter then
    held_bytes = taken_bytes if state.cap_bytes is None else state.cap_bytes
    if room_bytes < held_bytes:
        return CapState(target_bytes)
    if state.cap_bytes is None or state.cap_bytes == ceiling_bytes:
        return CapState(state.cap_bytes)
    full = target_bytes >= (most_bytes if ceiling_bytes is None else min(most_bytes, ceiling_bytes))
    if stalled or not (full or target_bytes > held_bytes * (1 + settings.grow_margin)):
        return CapState(state.cap_bytes)
    since_s = min(state.roomy_since_s, now_s)
    if now_s - since_s < settings.grow_after_s:
        return CapState(state.cap_bytes, since_s)
    return CapState(ceiling_bytes if full else target_bytes)
