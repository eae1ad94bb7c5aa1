"""Live update: watches service times and exchanges the plan."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from device_sdk.errors import ClosedError, ForkedError, PathweaveError, StorageError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.execution.running_calls import ServiceTimes
from device_sdk.live.live_events import out_of_reach, searched, switch_failed, switched, watching
from device_sdk.live.plan_pool import PlanPool
from device_sdk.live.pool_search import BackgroundSearch, Search, SearchOutcome
from device_sdk.live.speed_watch import SpeedWatch
from device_sdk.live.switching import (
    Decision,
    LastSwitch,
    LiveSettings,
    beside,
    bounds_ms,
    decide,
    is_over,
    likely_next,
    off_processor,
    scaled,
)
from device_sdk.logs.adaptation_log import AdaptationLog
from device_sdk.profiling.slow_cause import Cause
from device_sdk.profiling.speed_reading import SpeedSignals, SystemSpeed
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import Plan, Subnet


@dataclass(frozen=True)
class PreparedPlan:
    """A plan, the model that runs it, and how long it took to make it ready."""

    plan: Plan
    loaded: LoadedPlan
    prepare_ms: float


class WarmPlans:
    """Prepared plans under a cap of bytes, by the predicted peak of their subnets. Changed by one thread.

    Plans are dropped, never closed: a call may still run one.
    """

    def __init__(self) -> None:
        self._ready: dict[Subnet, PreparedPlan] = {}

    @property
    def subnets(self) -> frozenset[Subnet]:
        """The subnets that are ready. Thread-safe."""
        return frozenset(self._ready.copy())

    def want(self, candidates: Sequence[Candidate], *, cap_bytes: int) -> list[Candidate]:
        """Keep the first of ``candidates`` that fit under the cap together and drop the rest; those to be prepared."""
        wanted: list[Candidate] = []
        left = cap_bytes
        for one in candidates:
            if one.cost.peak_bytes <= left:
                wanted.append(one)
                left -= one.cost.peak_bytes
        subnets = {one.subnet for one in wanted}
        self._ready = {subnet: ready for subnet, ready in self._ready.items() if subnet in subnets}
        return [one for one in wanted if one.subnet not in self._ready]

    def put(self, prepared: PreparedPlan) -> None:
        """Keep a plan until ``want`` drops it."""
        self._ready[prepared.plan.subnet] = prepared

    def take(self, plan: Plan) -> PreparedPlan | None:
        """The prepared model of just this plan, if there is one; it is not kept any longer."""
        ready = self._ready.get(plan.subnet)
        if ready is None or ready.plan != plan:
            return None
        return self._ready.pop(plan.subnet)

    def clear(self) -> None:
        """Drop all."""
        self._ready.clear()


_log = logging.getLogger(__name__)

_PAUSE_S = 0.02  # between two looks
_NOTE_AGAIN_S = 60.0  # a budget out of reach is not noted again sooner
_RETRY_S = 60.0  # after which a subnet that did not load is tried again
_JOIN_S = 10.0
_EXCHANGES = 8


class LiveUpdate:
    """Keeps the budget of ``pool`` with its candidates, from ``start`` to ``stop``.

    The thread sleeps until a call is out of bounds. It prepares the plan that it switches to, and ahead of time
    those that are probably next; calls never wait for it. ``search``, if given, looks for more candidates when none
    fits; ``remember`` is called with the larger pool. ``signals``: the system's words on its speed, which explain why
    the device became slower.
    """

    def __init__(
        self,
        in_use: PlanInUse,
        log: AdaptationLog,
        pool: PlanPool,
        settings: LiveSettings,
        *,
        search: Search | None = None,
        remember: Callable[[PlanPool], None] = lambda pool: None,
        signals: SpeedSignals | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_use, self._log, self._settings, self._clock = in_use, log, settings, clock
        self.pool = pool
        self._remember = remember
        self._searching = None if search is None else BackgroundSearch(search, self._searched)
        self._plans: dict[Subnet, Plan] = {}  # as they were calibrated
        self._warm = WarmPlans()
        self._failed_s: dict[Subnet, float] = {}
        self._last = LastSwitch()
        self._ratio = 1.0
        self._reach_noted_s = -math.inf
        self._ahead_wanted = True
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._speed = SpeedWatch(signals or SystemSpeed(), clock=clock, wait=self._stopped.wait)
        self._thread = threading.Thread(target=self._watch, name="pathweave-live", daemon=True)

    @property
    def warm_subnets(self) -> frozenset[Subnet]:
        """Subnets whose plans are ready ahead of a switch to them."""
        return self._warm.subnets

    def start(self) -> None:
        """Watch the active plan, whose subnet is in the pool, from now on."""
        self._speed.begin()
        self.follow()
        self._log.write(watching(self.pool, self._in_use.running().plan.subnet))
        self._wake.set()  # something can be prepared right away
        self._thread.start()

    def follow(self) -> None:
        """Watch the plan that is active now, and come back to just this plan whenever its subnet is best."""
        for _ in range(_EXCHANGES):
            active = self._in_use.running()
            self._plans[active.plan.subnet] = active.plan
            if self._in_use.exchange(self._watched(active.plan, active.loaded), expected=active):
                return

    def drop_warm(self) -> None:
        """Drop the plans prepared ahead: the memory is needed. Those that fit later are prepared again."""
        self._warm.clear()
        self._ahead_wanted = True
        self._wake.set()

    def stop(self) -> None:
        """End the thread; the plan in use stays. May be called twice."""
        self._stopped.set()
        self._wake.set()
        if self._searching is not None:
            self._searching.stop()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)
        active = self._in_use.active
        if active is not None and active.times is not None:
            try:
                self._in_use.exchange(replace(active, times=None), expected=active)
            except (ClosedError, ForkedError):
                return

    # In the thread

    def _watch(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            if self._stopped.is_set():
                break
            try:
                self._look()
                self._prepare_ahead()
            except (ClosedError, ForkedError):
                break
            except Exception:  # a thread that ends would leave the budget unwatched without a word
                _log.exception("live update met an error and goes on")
            self._stopped.wait(_PAUSE_S)
        self._warm.clear()

    def _look(self) -> None:
        """Decide once, and do it."""
        active = self._in_use.running()
        current = self.pool.find(active.plan.subnet)
        if active.times is None or current is None:
            return
        service_ms = active.times.last()
        over = is_over(current, service_ms, self.pool.budget, self._settings)
        cause: Cause = self._speed.stated() if over else "unknown"
        decision = self._decide(current, service_ms, cause)
        if decision is not None and decision.is_down and cause == "unknown" and off_processor(current):
            cause = self._speed.explained()  # before the switch: only here does it decide on the target
            if cause == "unknown":
                cause = "home"
            decision = self._decide(current, service_ms, cause)
        if decision is None:
            return
        self._ratio = decision.ratio
        self._note_reach(decision)
        if decision.target is not None:
            self._switch(active, decision, decision.target, cause)

    def _decide(self, current: Candidate, service_ms: Sequence[float], cause: Cause) -> Decision | None:
        return decide(
            current=current,
            pool=self._available(current),
            budget=self.pool.budget,
            service_ms=service_ms,
            now_s=self._clock(),
            last=self._last,
            settings=self._settings,
            cause=cause,
        )

    def _available(self, current: Candidate) -> list[Candidate]:
        now_s = self._clock()
        failed = {subnet for subnet, at_s in self._failed_s.items() if 0 <= now_s - at_s < _RETRY_S}
        return [one for one in beside(current, self.pool.candidates, self.pool.budget) if one.subnet not in failed]

    def _switch(self, active: Active, decision: Decision, target: Candidate, cause: Cause) -> None:
        plan = self._plan_for(target)
        prepared = self._warm.take(plan)
        ahead = prepared is not None
        prepared = prepared or self._prepare(plan)
        if prepared is None:
            return
        new = self._watched(plan, prepared.loaded)
        started = time.perf_counter()
        done = self._in_use.exchange(new, expected=active)
        exchange_ms = (time.perf_counter() - started) * 1e3
        if not done:  # another exchange came first
            return
        now_s = self._clock()
        if decision.is_down and cause == "unknown":
            cause = self._speed.explained()  # after the exchange, which does not wait for it
        self._last = self._last.followed_by(decision.why, now_s=now_s, settings=self._settings, cause=cause)
        self._warm.put(PreparedPlan(active.plan, active.loaded, 0.0))
        self._ahead_wanted = True
        self._log.write(
            switched(
                decision,
                active.plan.subnet,
                target,
                prepare_ms=prepared.prepare_ms,
                ahead=ahead,
                exchange_ms=exchange_ms,
                cause=cause if decision.is_down else None,
            )
        )

    def _plan_for(self, target: Candidate) -> Plan:
        """The plan that was taken on purpose for this subnet, else the pool's: thresholds hold for one subnet alone."""
        return self._plans.get(target.subnet, target.plan)

    def take_plans(self, plans: Mapping[Subnet, Plan]) -> PlanPool:
        """Run these plans from now on whenever their subnets are best; the pool with them."""
        self.pool = self.pool.with_plans(plans)
        self._plans |= plans
        self._ahead_wanted = True
        self._wake.set()
        return self.pool

    def _watched(self, plan: Plan, loaded: LoadedPlan) -> Active:
        current = self.pool.find(plan.subnet)
        if current is None:
            return Active(plan, loaded)
        low_ms, high_ms = bounds_ms(current, self.pool.candidates, self.pool.budget, self._settings)
        return Active(plan, loaded, ServiceTimes(self._wake, low_ms=low_ms, high_ms=high_ms))

    def _prepare(self, plan: Plan) -> PreparedPlan | None:
        """Make a plan ready; None, noted once, if that fails: then it is left alone for a while."""
        started = time.perf_counter()
        try:
            loaded = self._in_use.prepare(plan)
        except PathweaveError as error:
            if plan.subnet not in self._failed_s:
                self._log.write(switch_failed(plan.subnet, error))
            self._failed_s[plan.subnet] = self._clock()
            self._wake.set()  # the next best may do
            return None
        self._failed_s.pop(plan.subnet, None)
        return PreparedPlan(plan, loaded, (time.perf_counter() - started) * 1e3)

    def _prepare_ahead(self) -> None:
        """Prepare one of the plans that probably come next; the others in the next rounds."""
        if not self._ahead_wanted:
            return
        active = self._in_use.running()
        current = self.pool.find(active.plan.subnet)
        if current is None:
            return
        likely = likely_next(current, self._available(current), self.pool.budget, self._ratio, self._settings)
        missing = self._warm.want(likely, cap_bytes=self._warm_cap_bytes(current))
        self._ahead_wanted = len(missing) > 1
        if missing:
            prepared = self._prepare(self._plan_for(missing[0]))
            if prepared is not None:
                self._warm.put(prepared)
        if self._ahead_wanted:
            self._wake.set()

    def _warm_cap_bytes(self, current: Candidate) -> int:
        if (
            self._in_use.workspace.memory_cap_bytes is not None
        ):  # a device that pages has no room for what it does not use
            return 0
        memory_mb = self.pool.budget.memory_mb
        if memory_mb is None:
            return self._settings.warm_bytes
        return min(self._settings.warm_bytes, int(memory_mb * MB) - current.cost.peak_bytes)

    def _note_reach(self, decision: Decision) -> None:
        """Note, not again and again, that nothing fits any more, and have more candidates looked for."""
        if decision.fits:
            return
        searching = self._search_again(decision.ratio)
        now_s = self._clock()
        if 0 <= now_s - self._reach_noted_s < _NOTE_AGAIN_S:
            return
        self._reach_noted_s = now_s
        fastest_ms = min(one.cost.latency_ms for one in self.pool.candidates)
        self._log.write(out_of_reach(self.pool.budget, decision.ratio, fastest_ms, searching=searching))

    def _search_again(self, ratio: float) -> bool:
        if self._searching is None:
            return False
        wanted = scaled(self.pool.budget, ratio * self.pool.correction, self._settings)
        return self._searching.begin(wanted, ratio, now_s=self._clock(), cooldown_s=self._settings.search_cooldown_s)

    def _searched(self, outcome: SearchOutcome) -> None:
        """Add the candidates that a search found to the pool. Runs in the search's thread."""
        if outcome.candidates:
            self.pool = self.pool.with_more(outcome.candidates)
            try:
                self._remember(self.pool)
            except StorageError as error:
                _log.warning("the plan pool cannot be kept: %s", error)
        self._log.write(
            searched(
                outcome.budget,
                outcome.ratio,
                candidates=len(outcome.candidates),
                seconds=outcome.seconds,
                failure=outcome.failure,
            )
        )
        self._wake.set()
