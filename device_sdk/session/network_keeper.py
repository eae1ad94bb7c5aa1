"""State of following the network: the plans that are each the best on some network, the link estimate, the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from device_sdk.errors import UsageError
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.live.network_drift import DriftSettings, NetworkDrift
from device_sdk.live.network_follower import NetworkFollower
from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.offload.link_probe import LinkProbe
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.front import PlanFront
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Plan

Exchanged = Callable[[Choice, Uplink | None], None]
_SMALL_BYTES = 1  # a size beside that of an input: round trip and bandwidth both count


class NetworkKeeper:
    """Starts and stops following the network."""

    def __init__(self, in_use: PlanInUse, remote: RemoteAnswers) -> None:
        self._in_use, self._remote = in_use, remote
        self._lock = threading.Lock()  # guards the two that follow
        self._follower: NetworkFollower | None = None
        self._probe: LinkProbe | None = None

    @property
    def running(self) -> bool:
        """True while the network is followed."""
        return self._follower is not None

    def follow(self, front: PlanFront, *, exchanged: Exchanged, settings: DriftSettings | None = None) -> None:
        """Keep the plan the best for the network, with the plans that were kept and that the connected server allows.

        Raises:
            UsageError: no server is connected, or not one that the plans were made for.
        """
        bundle = self._in_use.workspace.bundle
        usable = front.with_offers(lambda plan: self._remote.why_not(plan) is None and bundle.has_all_of(plan))
        if not self._remote.is_connected or usable is None:
            raise UsageError("there is no network to follow: no server is connected that the plans know")
        link = LinkEstimate(front.uplink, clock=time.monotonic)
        probe = self._remote.prober(link, usable.cheapest_tail())
        latest: Choice | None = None

        def replan(uplink: Uplink | None) -> Plan:
            nonlocal latest
            latest = usable.best(uplink)
            return latest.plan

        def made(uplink: Uplink | None) -> None:
            if uplink is not None:
                self._remote.try_again()
            assert latest is not None
            exchanged(latest, uplink)

        sizes = (_SMALL_BYTES, max(front.input_bytes, _SMALL_BYTES))
        drift = NetworkDrift(front.uplink, sizes, settings)
        follower = NetworkFollower(self._in_use, link, drift, probe=probe, replan=replan, exchanged=made)
        self.stop()
        self._remote.tell(link, answer_ms=front.answer_ms)
        with self._lock:
            self._follower, self._probe = follower, probe
        follower.start()

    def stop(self) -> None:
        """Follow no longer; the plan in use stays. May be called twice."""
        with self._lock:
            follower, self._follower = self._follower, None
            probe, self._probe = self._probe, None
        self._remote.tell(None)
        if follower is not None:
            follower.stop()
        if probe is not None:
            probe.close()
