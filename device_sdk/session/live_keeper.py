"""State of live update and of following the network: what is followed, with which plans, in which threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs
from device_sdk.errors import UsageError
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.live.live_update import LiveUpdate
from device_sdk.live.network_follower import DriftSettings, NetworkDrift, NetworkFollower
from device_sdk.live.plan_pool import PlanPool, pool_of
from device_sdk.live.pool_search import PoolSearch
from device_sdk.live.switching import LiveSettings
from device_sdk.logs.adaptation_log import AdaptationLog
from device_sdk.offload.link_estimate import LinkEstimate, LinkProbe
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings, stand_in_labels
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.front import PlanFront
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress, SilentProgress
from device_sdk.search.port import Candidate
from device_sdk.session.device_state import DeviceState
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.supernet.cost import Budget, Uplink
from device_sdk.supernet.plan import Plan, Prior, Subnet

_FILL_SHARE = 1.0  # of the time that the adaptation took, for the other latencies of the pool
_FILL_LEAST_S = 5.0


@dataclass(frozen=True)
class PrivateSamples:
    """Private inputs with labels [count] or None, and how they are searched on."""

    inputs: Inputs
    labels: npt.NDArray[np.int64] | None
    settings: AdaptationSettings
    profile: Profile


class LiveKeeper:
    """Starts and stops live update. Private samples stay in memory only if ``keep`` is set."""

    def __init__(self, state: DeviceState, in_use: PlanInUse, log: AdaptationLog) -> None:
        self._state, self._in_use, self._log = state, in_use, log
        self._lock = threading.Lock()  # guards the two that follow
        self._live: LiveUpdate | None = None
        self._search: PoolSearch | None = None

    @property
    def running(self) -> bool:
        """True while live update runs."""
        return self._live is not None

    def remember(self, found: Found, samples: PrivateSamples, *, progress: Progress) -> None:
        """Make the pool of a search and store it, as the settings of ``samples`` say.

        Without a latency budget there is nothing to keep, and no pool.
        """
        with self._lock:
            self._search = None
        budget = found.goal.budget() if found.goal.limits_latency else None
        watchable = found.measured is not None and any(one.subnet == found.subnet for one in found.pool)
        if budget is None or not watchable or found.plan.split is not None:
            return
        fill, keep = samples.settings.fill_pool, samples.settings.keep_samples
        search = self._pool_search(samples, found.plan.class_prior) if fill or keep else None
        more: list[Candidate] = []
        if fill and search is not None:
            limit_s = max(_FILL_LEAST_S, _FILL_SHARE * found.seconds)
            more = search.fill(budget, time_limit_s=limit_s, progress=progress)
        self._state.save_pool(pool_of(found, more))
        if keep:
            with self._lock:
                self._search = search

    def start(self, budget: Budget | None, settings: LiveSettings) -> None:
        """Watch the plan in use with the stored pool, at another ``budget`` if there is one.

        Raises:
            UsageError: nothing was adapted, or the plan in use cannot be watched; says why.
        """
        self.stop()
        pool = self._pool(budget, self._in_use.running().plan)
        search = self._search
        live = LiveUpdate(
            self._in_use,
            self._log,
            pool,
            settings,
            search=None if search is None else _limited(search, settings),
            remember=self._state.save_pool,
        )
        with self._lock:
            self._live = live
        live.start()

    def give_exits(self, plan_of: Callable[[Subnet], Plan]) -> None:
        """Give every candidate of the watched pool, but that in use, the plan with exits that ``plan_of`` chooses."""
        live = self._live
        if live is None:
            return
        in_use = self._in_use.running().plan.subnet
        others = [one.subnet for one in live.pool.candidates if one.subnet != in_use]
        self._state.save_pool(live.take_plans({subnet: plan_of(subnet) for subnet in others}))

    def keep_exits(self, held: Collection[str]) -> None:
        """The plans of the pool, watched or stored, lose all exits that are not ``held``."""
        self._change_plans(lambda pool: pool.plans_without_exits(held))

    def use_prior(self, prior: Prior) -> None:
        """All plans of the pool, watched or stored, take ``prior``."""
        self._change_plans(lambda pool: {one.subnet: one.plan.with_prior(prior) for one in pool.candidates})

    def _change_plans(self, changed_in: Callable[[PlanPool], Mapping[Subnet, Plan]]) -> None:
        live = self._live
        pool = live.pool if live is not None else self._state.load_pool()
        changed = {} if pool is None else changed_in(pool)
        if pool is None or not changed:
            return
        self._state.save_pool(pool.with_plans(changed) if live is None else live.take_plans(changed))

    def follow(self) -> None:
        """Another plan was taken on purpose: watch that, while live update runs."""
        live = self._live
        if live is not None:
            live.follow()

    def resized(self) -> None:
        """The memory cap changed: watch the plan in use, and prepare others under that cap."""
        live = self._live
        if live is not None:
            live.drop_warm()
            live.follow()

    def stop(self) -> None:
        """Watch no longer. May be called twice."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.stop()

    def forget(self) -> None:
        """Drop the private samples."""
        with self._lock:
            self._search = None

    def _pool(self, budget: Budget | None, plan: Plan) -> PlanPool:
        pool = self._state.load_pool()
        if pool is None:
            raise UsageError("there is no plan pool to switch in", hint="adapt to a latency first")
        if plan.split is not None:
            raise UsageError("a plan that is split with a server cannot be watched", hint="adapt again, without split")
        if pool.find(plan.subnet) is None:
            raise UsageError("the plan in use is not in the plan pool", hint="adapt first")
        if budget is None:
            return pool
        if budget.latency_ms is None:
            raise UsageError("live update keeps a latency budget, and there is none", hint="set Goal(latency_ms=…)")
        return pool.for_budget(budget)

    def _pool_search(self, samples: PrivateSamples, prior: Prior | None) -> PoolSearch:
        labels, workspace = samples.labels, self._in_use.lend_workspace()
        if labels is None:
            batch, use_prior = samples.settings.batch, prior is not None
            labels, _ = stand_in_labels(workspace, samples.inputs, batch=batch, use_prior=use_prior)
        return PoolSearch(workspace, samples.profile.cost_model(), samples.inputs, labels, samples.settings, prior)


def _limited(search: PoolSearch, settings: LiveSettings) -> Callable[[Budget, Callable[[], bool]], list[Candidate]]:
    def run(budget: Budget, cancelled: Callable[[], bool]) -> list[Candidate]:
        limit_s = settings.search_time_limit_s
        return search.search(budget, time_limit_s=limit_s, cancelled=cancelled, progress=SilentProgress())

    return run


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
