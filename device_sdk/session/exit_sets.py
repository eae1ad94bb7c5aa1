"""Exits that a device holds: fetched on demand, tested, and exchanged while calls run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BlobError, TransferError
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.logs.adaptation_log import AdaptationLog, ExitsExchanged
from device_sdk.policies.placement import candidates_by_macs, place
from device_sdk.progress import Progress
from device_sdk.session.device_state import DeviceState, StoredPart, load_part, save_part
from device_sdk.session.live_keeper import LiveKeeper
from device_sdk.session.origin import Origin
from device_sdk.supernet.supernet import Supernet

_log = logging.getLogger(__name__)

TestExits = Callable[[Bundle, Collection[str]], None]


@dataclass(frozen=True)
class PlacedExits:
    """The exits that are held now, by position, and who chose them.

    ``expectation``: expected accuracy of an inference that is interrupted at a random moment before its end;
    ``memory_bytes``: of the branches' float32 parameters. ``failure``: why the server did not choose.
    """

    exits: tuple[str, ...]
    expectation: float
    memory_bytes: int
    chosen_by: Literal["server", "device"]
    failure: str | None = None


class ExitSets:
    """Exchanges the set of exits. If a step fails, the old set stays.

    ``origin``: None for a bundle in a folder, which has all blobs. ``test``: the self-test of some exits.
    """

    def __init__(
        self,
        state_folder: Path,
        state: DeviceState,
        in_use: PlanInUse,
        live: LiveKeeper,
        log: AdaptationLog,
        *,
        origin: Origin | None,
        test: TestExits,
    ) -> None:
        self._state_folder, self._state, self._in_use, self._live, self._log = state_folder, state, in_use, live, log
        self._origin, self._test = origin, test

    def exchange(self, exits: Collection[str], *, chosen_by: str, progress: Progress) -> None:
        """Hold exactly these exits from now on: fetch, verify and test the new ones; plans lose the others.

        Raises:
            UsageError: the bundle has no such exit.
            TransferError, BlobError, StorageError, SelfTestError: a new exit cannot be had, or does not work here.
        """
        old = self._in_use.workspace.bundle
        with self._with_exits(old, exits, progress) as (new, size_bytes):
            added = [name for name in new.exits if name not in old.exits]
            new.verify(exits=added)
            untested = self._state.untested_exits(new)
            if untested:
                self._test(new, untested)
            self._move_to(new)
        dropped = tuple(name for name in old.exits if name not in new.exits)
        self._log.write(ExitsExchanged(new.exits, tuple(added), dropped, size_bytes, chosen_by))

    def place(self, *, memory_bytes: int | None, progress: Progress) -> PlacedExits:
        """Hold the exits that the server chooses for so much memory; without a usable answer the device chooses.

        The device alone chooses among exits whose blobs are here, since others could not be fetched.

        Raises:
            UsageError: a negative memory.
            SelfTestError: a new exit does not work here; the old set stays.
        """
        bundle = self._in_use.workspace.bundle
        bundle.require_whole("placing exits")
        failure: str | None = None
        if self._origin is not None:
            try:
                placed = self._by_server(bundle, memory_bytes)
                self.exchange(placed.exits, chosen_by="server", progress=progress)
            except (TransferError, BlobError) as error:
                failure = str(error)
                _log.warning("the device chooses its exits itself: %s", error)
            else:
                return placed
        here = _with_blobs_here(bundle)
        placed = _by_device(here.supernet, memory_bytes, failure)
        self.exchange(placed.exits, chosen_by="device", progress=progress)
        return placed

    def _by_server(self, bundle: Bundle, memory_bytes: int | None) -> PlacedExits:
        assert self._origin is not None
        requested = self._origin.chosen(bundle, memory_bytes=memory_bytes)
        needed = _memory_bytes(bundle.offered.supernet(), requested.exits)
        if memory_bytes is not None and needed > memory_bytes:
            raise TransferError(f"the server chose exits of {needed} bytes, and {memory_bytes} are allowed")
        return PlacedExits(requested.exits, requested.expectation, needed, "server")

    @contextlib.contextmanager
    def _with_exits(self, old: Bundle, exits: Collection[str], progress: Progress) -> Iterator[tuple[Bundle, int]]:
        if self._origin is None:
            yield old.with_exits(exits), 0
            return
        with self._origin.fetched(old, exits, progress) as fetched:
            yield fetched

    def _move_to(self, new: Bundle) -> None:
        """Load the plan in use without what is no longer held, store what is held, exchange both."""
        held = frozenset(new.exits)
        plan = self._in_use.running().plan.with_exits_of(held)
        workspace = self._in_use.workspace.of(new)
        self._in_use.lend_workspace()
        loaded = self._in_use.load(plan, workspace=workspace)
        self._state.save_plan(plan)  # before the set: a plan whose exits are gone would not open again
        kept = load_part(self._state_folder, new.manifest.name, new.digest)
        save_part(self._state_folder, new, StoredPart(new.exits, None if kept is None else kept.plan))
        self._state.follow(new)
        self._state.remember_self_test()
        self._live.keep_exits(held)
        self._in_use.move(Active(plan, loaded), workspace)
        self._live.follow()


def _with_blobs_here(bundle: Bundle) -> Bundle:
    """The bundle with all exits that were fetched before, whether held now or not."""
    here = []
    for exit_ in bundle.offered.exits:
        with contextlib.suppress(BlobError):
            bundle.with_exits([exit_.id])
            here.append(exit_.id)
    return bundle.with_exits(here)


def _by_device(supernet: Supernet, memory_bytes: int | None, failure: str | None) -> PlacedExits:
    candidates, full_macs = candidates_by_macs(supernet)
    placement = place(candidates, full_time=full_macs, memory_bytes=memory_bytes)
    return PlacedExits(placement.exits, placement.expectation, placement.memory_bytes, "device", failure)


def _memory_bytes(supernet: Supernet, exits: Collection[str]) -> int:
    candidates, _ = candidates_by_macs(supernet)
    return sum(one.memory_bytes for one in candidates if one.exit in exits)
