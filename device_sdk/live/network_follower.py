"""A thread that plans again when the network has changed, and exchanges the plan.

``network_drift`` decides; the plans come from the planner that made the first one, over the same evidence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from device_sdk.errors import PathweaveError
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.live.looking_thread import LookingThread
from device_sdk.live.network_drift import NetworkDrift
from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Plan
from device_sdk.transports.port import Clock

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
