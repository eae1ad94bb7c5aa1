"""The memory cap of an open model: changed on demand, and with the system's memory."""

from __future__ import annotations

import logging
import threading
import time

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import ClosedError, ForkedError, UsageError
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.live.elastic import CapState, ElasticSettings, next_cap
from device_sdk.logs.adaptation_log import AdaptationLog, Resized
from device_sdk.memory_pressure import MemoryPressure, MemoryReading
from device_sdk.policies.exits.elastic_plan import least_plan_bytes, plan_within, whole_plan_bytes
from device_sdk.session.device_state import DeviceState
from device_sdk.session.live_keeper import LiveKeeper
from device_sdk.supernet.plan import Plan

_log = logging.getLogger(__name__)
_JOIN_S = 10.0


class ElasticMemory:
    """Changes the cap under running calls. ``live.elastic`` decides when, ``policies.exits.elastic_plan`` what remains.

    The plan that was taken on purpose is remembered, and comes back as far as there is room.
    """

    def __init__(self, state: DeviceState, in_use: PlanInUse, live: LiveKeeper, log: AdaptationLog) -> None:
        self._state, self._in_use, self._live, self._log = state, in_use, live, log
        self._lock = threading.Lock()  # one change of the cap at a time
        self._made: tuple[Plan, Plan] | None = None  # what runs, and of what it is a part
        self._bounds: tuple[Plan, tuple[int, int]] | None = None
        self._watch: _Watch | None = None

    @property
    def _bundle(self) -> Bundle:
        return self._in_use.workspace.bundle

    @property
    def cap_bytes(self) -> int | None:
        """The cap; None for none."""
        return self._in_use.workspace.memory_cap_bytes

    def set_cap(self, cap_bytes: int | None) -> None:
        """Change it now. The memory is kept to once the calls in progress have ended.

        Raises:
            BudgetError: not even the path to the plan's first exit fits; says the least that works. Nothing changes.
            UsageError: it is not above 0.
        """
        if cap_bytes is not None and cap_bytes <= 0:
            raise UsageError(f"the memory cap is {cap_bytes} bytes; it must be above 0")
        self._resize(cap_bytes, why="asked")
        watch = self._watch
        if watch is not None:
            watch.allow(cap_bytes)

    def watch(self, pressure: MemoryPressure, settings: ElasticSettings) -> None:
        """Follow the system's memory from now on; the cap that was set is the most. Raises as ``pressure.read``."""
        self.stop()
        pressure.read()
        self._watch = _Watch(self, pressure, settings, self.cap_bytes)

    @property
    def watching(self) -> bool:
        """True while the system's memory is followed."""
        return self._watch is not None

    def stop(self) -> None:
        """Stay with the cap in use. May be called twice."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def follow(
        self, state: CapState, reading: MemoryReading, ceiling: int | None, settings: ElasticSettings
    ) -> CapState:
        """One decision of a watch, done."""
        whole = self._whole()
        least_bytes, most_bytes = self._bounds_bytes(whole)
        wanted = next_cap(
            state,
            reading,
            taken_bytes=self._in_use.running().loaded.taken_bytes,
            most_bytes=most_bytes,
            ceiling_bytes=ceiling,
            now_s=time.monotonic(),
            settings=settings,
        )
        cap_bytes = wanted.cap_bytes
        if cap_bytes is not None:
            cap_bytes = max(cap_bytes, least_bytes)
        if cap_bytes != state.cap_bytes:
            sinks = cap_bytes is not None and (state.cap_bytes is None or cap_bytes < state.cap_bytes)
            why = "pressure" if sinks else "room"
            self._resize(cap_bytes, why=why, available_bytes=reading.available_bytes)
        return CapState(cap_bytes, wanted.roomy_since_s)

    def _bounds_bytes(self, plan: Plan) -> tuple[int, int]:
        """The least cap under which any part of the plan runs, and what all of it takes; kept, since they are asked
        for at every reading."""
        known = self._bounds
        if known is None or known[0] != plan:
            bounds = (least_plan_bytes(self._bundle, plan), whole_plan_bytes(self._bundle, plan))
            self._bounds = known = (plan, bounds)
        return known[1]

    def _whole(self) -> Plan:
        """The plan that was taken on purpose, of which what runs now may be a part."""
        plan, made = self._in_use.running().plan, self._made
        return made[1].with_exits_of(self._bundle.exits) if made is not None and made[0] == plan else plan

    def _resize(self, cap_bytes: int | None, *, why: str, available_bytes: int | None = None) -> None:
        with self._lock:
            old_cap_bytes, whole = self.cap_bytes, self._whole()
            if cap_bytes == old_cap_bytes:
                return
            plan = plan_within(self._bundle, whole, cap_bytes)
            self._in_use.exchange_cap(cap_bytes, plan, hurry=why == "pressure")
            self._made = (plan, whole)
            self._state.memory_cap_bytes = cap_bytes
            self._live.resized()
        last = plan.exits[-1] if plan.exits else None
        self._log.write(
            Resized(
                why=why,
                old_cap_bytes=old_cap_bytes,
                cap_bytes=cap_bytes,
                available_bytes=available_bytes,
                exits=tuple(choice.exit for choice in plan.exits),
                ends_at=last.exit if last is not None and last.threshold <= 0 else None,
            )
        )


class _Watch:
    """The thread that reads the system's memory."""

    def __init__(
        self, memory: ElasticMemory, pressure: MemoryPressure, settings: ElasticSettings, ceiling_bytes: int | None
    ) -> None:
        self._memory, self._pressure, self._settings = memory, pressure, settings
        self._ceiling_bytes = ceiling_bytes
        self._state = CapState(ceiling_bytes)
        self._stopped = threading.Event()
        self._noted = False
        self._thread = threading.Thread(target=self._follow, name="pathweave-memory", daemon=True)
        self._thread.start()

    def allow(self, ceiling_bytes: int | None) -> None:
        """The user set another cap."""
        self._ceiling_bytes = ceiling_bytes
        self._state = CapState(ceiling_bytes)

    def stop(self) -> None:
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _follow(self) -> None:
        while not self._stopped.wait(self._settings.interval_s):
            try:
                reading = self._pressure.read()
                self._state = self._memory.follow(self._state, reading, self._ceiling_bytes, self._settings)
                self._noted = False
            except (ClosedError, ForkedError):
                return
            except Exception as error:  # a thread that ends would leave the memory unwatched without a word
                if not self._noted:
                    _log.warning("the memory cap stays as it is: %s", error)
                self._noted = True
