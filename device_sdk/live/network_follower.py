"""The network against the one that was planned for, and a thread that has another plan taken."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from device_sdk.errors import PathweaveError
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.live.mix_follower import LookingThread
from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Plan
from device_sdk.transports.port import Clock


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


_log = logging.getLogger(__name__)

PAUSE_S = 0.2  # between two looks
PROBE_AFTER_S = 0.6  # without a request


class Replan(Protocol):
    """Makes the plan for an uplink, None for a server out of reach."""

    def __call__(self, uplink: Uplink | None) -> Plan:
        """The best plan, or the nearest to keeping the requirement."""


class NetworkFollower:
    """Keeps the plan in use the best for the network, from ``start`` to ``stop``.

    Args:
        link: told of every request by those who make them; ``probe`` makes one when there was none for a while.
        exchanged: called after an exchange, with the uplink that the plan was made for.
    """

    def __init__(
        self,
        in_use: PlanInUse,
        link: LinkEstimate,
        drift: NetworkDrift,
        *,
        probe: Callable[[], None],
        replan: Replan,
        exchanged: Callable[[Uplink | None], None] = lambda uplink: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._in_use, self._link, self._drift = in_use, link, drift
        self._probe, self._replan, self._exchanged, self._clock = probe, replan, exchanged, clock
        self._thread = LookingThread(self.look, subject="network", pause_s=PAUSE_S)

    def start(self) -> None:
        """Follow from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the plan in use stays. May be called twice."""
        self._thread.stop()

    # In the thread

    def look(self) -> None:
        """Probe if no request told anything lately, decide once, and do it."""
        if self._link.quiet_s >= PROBE_AFTER_S:
            self._probe()
        uplink = self._link.uplink
        if self._thread.stopped or not self._drift.calls_for_a_plan(uplink, self._clock()):
            return
        active = self._in_use.running()
        plan = self._replan(uplink)
        self._drift.planned_with(uplink, self._clock())
        if plan != active.plan:
            self._exchange(active, plan, uplink)

    def _exchange(self, active: Active, plan: Plan, uplink: Uplink | None) -> None:
        try:
            loaded = self._in_use.prepare(plan)
        except PathweaveError as error:
            _log.warning("the plan for the changed network does not load: %s", error)
            return
        if self._thread.stopped or not self._in_use.exchange(Active(plan, loaded), expected=active):
            loaded.close()
            return
        self._exchanged(uplink)
