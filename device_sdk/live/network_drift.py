"""Decides when to plan again because the network has changed. Pure: the clock's reading is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass

from device_sdk.supernet.cost import Uplink


@dataclass(frozen=True, kw_only=True)
class DriftSettings:
    """``factor``: by which a transfer is slower or quicker than planned; ``patience_s``: for how long in a row;
    ``cooldown_s``: after a plan was made, before the next one."""

    factor: float = 1.5
    patience_s: float = 0.8
    cooldown_s: float = 1.5


class NetworkDrift:
    """Detects when the link to a server differs from the one that the plan assumed.

    ``sizes``: of typical requests in bytes, whose transfer times count. A server that is out of reach, or back again,
    is a change too. Not thread-safe.
    """

    def __init__(self, planned: Uplink | None, sizes: tuple[int, ...], settings: DriftSettings | None = None) -> None:
        self._planned, self._sizes, self._settings = planned, sizes, settings or DriftSettings()
        self._since_s: float | None = None  # when the drift began
        self._planned_s = -math.inf

    def calls_for_a_plan(self, now: Uplink | None, now_s: float) -> bool:
        """True if it is time to plan again with ``now``, the present uplink (None: the server is out of reach).

        A clock that jumps back begins anew.
        """
        if now_s < self._planned_s or (self._since_s is not None and now_s < self._since_s):
            self._since_s, self._planned_s = None, -math.inf
        if not self._has_drifted(now):
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        is_steady = now_s - self._since_s >= self._settings.patience_s
        return is_steady and now_s - self._planned_s >= self._settings.cooldown_s

    def planned_with(self, uplink: Uplink | None, now_s: float) -> None:
        """Record that a plan was made with this uplink."""
        self._planned, self._planned_s, self._since_s = uplink, now_s, None

    def _has_drifted(self, now: Uplink | None) -> bool:
        if now is None or self._planned is None:
            return (now is None) != (self._planned is None)
        ratios = [now.transfer_ms(size) / max(self._planned.transfer_ms(size), 1e-9) for size in self._sizes]
        return any(not 1 / self._settings.factor < ratio < self._settings.factor for ratio in ratios)
