"""State of following the network: the planner with its evidence, the link estimate, and the thread.

After ``open`` the evidence is gone; the plans that were the best on some network were kept, and go on.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

from device_sdk.errors import UsageError
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.live.network_drift import DriftSettings, NetworkDrift
from device_sdk.live.network_follower import NetworkFollower
from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.offload.link_probe import LinkProbe, PlannedTail
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.front import PlanFront, make_front
from device_sdk.policies.planning.plan_choice import Planned
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.supernet.cost import Power, Uplink
from device_sdk.supernet.plan import Plan
from device_sdk.supernet.requirement import Requirement

Exchanged = Callable[[Choice, Uplink | None], None]
_SMALL_BYTES = 1  # a size beside that of an input: round trip and bandwidth both count


class NetworkKeeper:
    """Starts and stops following the network. In between the answers to the samples stay in memory, not the samples."""

    def __init__(self, in_use: PlanInUse, remote: RemoteAnswers) -> None:
        self._in_use, self._remote = in_use, remote
        self._lock = threading.Lock()  # guards the two that follow
        self._follower: NetworkFollower | None = None
        self._probe: LinkProbe | None = None

    @property
    def running(self) -> bool:
        """True while the network is followed."""
        return self._follower is not None

    def require(self, planned: Planned) -> None:
        """Raise UsageError unless ``planned`` knows a network, and a server is connected."""
        if planned.servers.network is None or not self._remote.is_connected:
            raise UsageError("there is no network to follow: the plan was made without a server", hint="connect first")

    def start(
        self,
        planned: Planned,
        requirement: Requirement,
        power: Power | None,
        *,
        exchanged: Exchanged,
        settings: DriftSettings | None = None,
    ) -> None:
        """Keep the plan the best for the network, with the planner of ``planned``.

        Raises:
            UsageError: the plan was made without a server, or none is connected any more.
        """
        self.require(planned)
        network, asked = planned.servers.network, planned.servers.asked
        assert network is not None

        def best(uplink: Uplink | None) -> Choice:
            there = None if uplink is None else dataclasses.replace(network, uplink=uplink)
            return planned.planner.nearest(requirement, there, power)

        answer_ms = 0.0 if asked is None else network.answer_ms.get(asked, 0.0)
        self._follow(best, network.uplink, network.input_bytes, answer_ms, exchanged, settings)

    def front(self, planned: Planned, requirement: Requirement, power: Power | None) -> PlanFront:
        """The front that ``resume`` takes, from the arguments of ``start``."""
        network, asked = planned.servers.network, planned.servers.asked
        assert network is not None
        planner = planned.planner
        return make_front(
            lambda there: planner.nearest(requirement, there, power),
            planner.planner.route,
            requirement,
            network,
            power,
            asked=asked,
        )

    def resume(self, front: PlanFront, *, exchanged: Exchanged, settings: DriftSettings | None = None) -> None:
        """Keep the plan the best for the network, with the plans that were kept and that the connected server allows.

        Raises:
            UsageError: no server is connected, or not one that the plans were made for.
        """
        bundle = self._in_use.workspace.bundle
        usable = front.with_offers(lambda plan: self._remote.why_not(plan) is None and bundle.has_all_of(plan))
        if not self._remote.is_connected or usable is None:
            raise UsageError("there is no network to follow: no server is connected that the plans know")
        tail = usable.cheapest_tail()
        self._follow(usable.best, front.uplink, front.input_bytes, front.answer_ms, exchanged, settings, tail)

    def _follow(
        self,
        best: Callable[[Uplink | None], Choice],
        uplink: Uplink,
        input_bytes: int,
        answer_ms: float,
        exchanged: Exchanged,
        settings: DriftSettings | None,
        tail: PlannedTail | None = None,
    ) -> None:
        link = LinkEstimate(uplink, clock=time.monotonic)
        probe = self._remote.prober(link, tail)
        latest: Choice | None = None

        def replan(uplink: Uplink | None) -> Plan:
            nonlocal latest
            latest = best(uplink)
            return latest.plan

        def made(uplink: Uplink | None) -> None:
            if uplink is not None:
                self._remote.try_again()
            assert latest is not None
            exchanged(latest, uplink)

        sizes = (_SMALL_BYTES, max(input_bytes, _SMALL_BYTES))
        drift = NetworkDrift(uplink, sizes, settings)
        follower = NetworkFollower(self._in_use, link, drift, probe=probe, replan=replan, exchanged=made)
        self.stop()
        self._remote.tell(link, answer_ms=answer_ms)
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
