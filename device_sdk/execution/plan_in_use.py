"""The plan in use: exchanged in one assignment while calls run, freed by the last that uses it."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from device_sdk.errors import BudgetError, ClosedError, ForkedError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.running_calls import MemoryCap, PlanRetired, ServiceTimes
from device_sdk.execution.workspace import Workspace
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Plan

_PACE_CALLS, _LEAST_PACE_CALLS = 33, 9


_TIMED_BATCHES = 4  # batch sizes; the one that came first goes


@dataclass(frozen=True, eq=False)
class Active:
    """A plan, the model that runs it, and the record of its service times: exchanged as one.

    So no call sees half of a switch, and no service time counts for a plan that did not take it.
    """

    plan: Plan
    loaded: LoadedPlan
    times: ServiceTimes | None = None


class PlanInUse:
    """Holds the active plan. A call takes it once and keeps it to its end, so nothing is closed under a call.

    A child that was forked off cannot use it: the threads of the runtime and of live update stay behind, and locks
    may have been copied while they were held.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.active: Active | None = None  # read without a lock
        self.forked = False
        self.workspace = workspace  # of the plan, and of what is loaded beside it; see ``lend_workspace``
        self.cap = MemoryCap(workspace.memory_cap_bytes)  # of all plans that are loaded here
        self._timed_batches: deque[int] = deque(maxlen=_TIMED_BATCHES)  # that were asked for by a deadline
        self._exchange = threading.Lock()  # guards writes to active, so that nothing reopens a closed model
        _in_use.add(self)

    def running(self) -> Active:
        """The active plan.

        Raises:
            ClosedError: the model was closed.
            ForkedError: the model was opened in the process from which this one was forked.
        """
        active = self.active
        if active is not None:
            return active
        if self.forked:
            raise ForkedError(
                "the model was opened before this process was forked off, and does not work in here",
                hint="open it in the child, or start children by spawn",
            )
        raise ClosedError("the model was closed")

    def prepare(self, plan: Plan) -> LoadedPlan:
        """``plan``, loaded and run once: the first run is slower than those that follow.

        Raises:
            UsageError: it does not fit the bundle's graph.
            BlobError, CompositionError, RuntimeFailedError: it does not load or run.
        """
        loaded = self.load(plan)
        self.run_once(loaded)
        return loaded

    def load(self, plan: Plan, *, workspace: Workspace | None = None) -> LoadedPlan:
        """``plan``, loaded, and its steps measured if deadlines were used before. Raises as ``prepare``.

        ``workspace``: another one than that in use.
        """
        while True:
            loaded = (workspace or self.workspace).load_plan(plan, cap=self.cap)
            try:
                loaded.load_each()
                for batch in self._timed_batches.copy() if loaded.has_steps else ():
                    loaded.stepped().times(self._zeros(loaded, batch))
            except PlanRetired:  # the cap was lowered while it loaded: load it for the new cap
                loaded.close()
                continue
            return loaded

    def lend_workspace(self) -> Workspace:
        """Evict the active plan's idle pages and return the workspace, to load something else beside the plan.

        A concurrent call loads the pages of the plan again; then both are in memory.
        """
        active = self.active
        if active is not None:
            active.loaded.release()
        return self.workspace

    def run_once(self, loaded: LoadedPlan) -> None:
        """Run it on one sample of zeros."""
        loaded.run(self._zeros(loaded, 1))

    def _zeros(self, loaded: LoadedPlan, batch: int) -> Array:
        spec = self.workspace.supernet.cut_points_at(loaded.input_size)[0].tensors[0]
        return np.zeros((batch, *spec.shape), dtype=spec.dtype)

    def begin(self, plan: Plan) -> None:
        """The first plan. Raises as ``prepare``."""
        self.active = Active(plan, self.load(plan))

    def exchange(self, new: Active, *, expected: Active | None = None) -> bool:
        """Make ``new`` active, with ``expected`` only if that still is; True if it became so.

        Raises:
            ClosedError, ForkedError: as ``running``.
        """
        with self._exchange:
            if expected is not None and self.running() is not expected:
                return False
            self.running()
            self.active = new
            return True

    def move(self, new: Active, workspace: Workspace) -> None:
        """Make ``new`` active, in another workspace. Raises as ``exchange``."""
        with self._exchange:
            self.running()
            self.active, self.workspace = new, workspace

    def time_batch(self, batch: int) -> None:
        """Measure the steps of plans that are loaded from now on for this batch size too."""
        if batch not in self._timed_batches:
            self._timed_batches.append(batch)

    def instead_of(self, retired: Active) -> Active:
        """The plan for a call whose own raised PlanRetired: the active one, loaded again if it is still ``retired``.

        Raises:
            BudgetError: it does not fit the memory cap any more.
            ClosedError, ForkedError: as ``running``. Others as ``prepare``.
        """
        active = self.running()
        if active is not retired:
            return active
        try:
            self.exchange(replace(active, loaded=self.load(active.plan)), expected=active)
        except BudgetError:
            if self.running() is active:
                raise
        return self.running()

    def exchange_cap(self, cap_bytes: int | None, plan: Plan, *, hurry: bool = False) -> None:
        """Change the memory cap under running calls, and run ``plan`` from now on.

        Nothing is loaded beside the old plan under a lower cap: the new one loads its pages when they run, which waits
        until calls of the old one have ended. ``hurry``: these answer with the last exit that they reached. Calls whose
        pages do not fit any more begin again with the new plan.

        Raises:
            BudgetError: the cap is too small for the largest block; says the least that works. Nothing changes.
            ClosedError, ForkedError: as ``running``.
        """
        workspace = replace(self.workspace, memory_cap_bytes=cap_bytes)
        if cap_bytes is None or cap_bytes > (self.workspace.memory_cap_bytes or math.inf):
            self.cap.set(cap_bytes)  # before the new plan runs, whose pages may be larger
        loaded = workspace.load_plan(plan, cap=self.cap)
        while True:
            old = self.running()
            old.loaded.count()
            if self.exchange(Active(plan, loaded), expected=old):
                break
        with self._exchange:
            self.workspace = replace(self.workspace, memory_cap_bytes=cap_bytes)
        if hurry:
            old.loaded.hurry()
        old.loaded.retire()
        self.cap.set(cap_bytes)

    def close(self) -> None:
        """Drop the active plan; it is freed once the calls in progress have ended. May be called twice."""
        with self._exchange:
            self.active = None

    def after_fork(self) -> None:
        """In the child: let go of everything without freeing it, for that could wait for threads that are not here."""
        _left_behind.append(self.active)
        self.active, self.forked = None, True
        self._exchange = threading.Lock()


_in_use: weakref.WeakSet[PlanInUse] = weakref.WeakSet()
_left_behind: list[object] = []


def _after_fork_in_child() -> None:
    for one in list(_in_use):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
