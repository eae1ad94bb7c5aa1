"""Exits that a device holds: fetched from where the bundle came from, tested, and exchanged while calls run."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BlobError, TransferError, UsageError
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.logs.adaptation_log import AdaptationLog, ExitsExchanged
from device_sdk.policies.placement import candidates_by_macs, place
from device_sdk.progress import Progress, SilentProgress
from device_sdk.runtimes.port import Array
from device_sdk.session.device_state import DeviceState, StoredPart, load_part, save_part
from device_sdk.session.live_keeper import LiveKeeper
from device_sdk.session.samples import SampleChecker
from device_sdk.session.timed_answers import TimedAnswers
from device_sdk.supernet.cost import MB
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class Origin:
    """The server that a bundle came from. ``store_folder``: where what it sends is kept."""

    url: str
    store_folder: Path
    token: str | None = field(default=None, repr=False)

    @contextlib.contextmanager
    def fetched(self, bundle: Bundle, exits: Collection[str], progress: Progress) -> Iterator[tuple[Bundle, int]]:
        """``bundle`` with ``exits``, whose missing blobs were fetched, and the bytes that came; see ``fetch_exits``.

        Until the end of the context no process deletes what was fetched.
        """
        from device_sdk.delivery.exits import fetch_exits
        from device_sdk.delivery.store import BundleStore
        from device_sdk.transports import make_transport

        store = BundleStore(self.store_folder)
        with store.installing(), contextlib.closing(make_transport(self.url, token=self.token)) as transport:
            tally = fetch_exits(self.url, bundle, exits, store, transport, progress=progress)
            fetched = bundle.with_exits(exits)
            lease = store.lease(fetched.manifest.name, fetched.digest)
            weakref.finalize(fetched, lease.close)  # until then no other process deletes its blobs
            yield fetched, tally.size_bytes


_log = logging.getLogger(__name__)

TestExits = Callable[[Bundle, Collection[str]], None]


@dataclass(frozen=True)
class PlacedExits:
    """The exits that are held now, by position.

    ``expectation``: expected accuracy of an inference that is interrupted at a random moment before its end;
    ``memory_bytes``: of the branches' float32 parameters. ``failure``: why exits whose blobs are not here could not be
    had; the others were chosen from then.
    """

    exits: tuple[str, ...]
    expectation: float
    memory_bytes: int
    failure: str | None = None


class Exits:
    """The exits that this device holds, exchanged while calls run. If a step fails, the old set stays.

    ``model.exits`` in the public interface. ``origin``: None for a bundle in a folder, which has all blobs. ``test``:
    the self-test of some exits. ``change``: held by whatever changes the plan. ``before``: called before an exchange.
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
        change: Lock,
        before: Callable[[], None],
        samples: SampleChecker,
        timed: TimedAnswers,
    ) -> None:
        self._state_folder, self._state, self._in_use, self._live, self._log = state_folder, state, in_use, live, log
        self._origin, self._test, self._change, self._before = origin, test, change, before
        self._samples, self._timed = samples, timed

    @property
    def held(self) -> tuple[str, ...]:
        """The exits that are held here."""
        return self._in_use.workspace.bundle.exits

    @property
    def offered(self) -> tuple[str, ...]:
        """All exits of the bundle."""
        return tuple(one.id for one in self._in_use.workspace.bundle.offered.exits)

    def hold(self, exits: Collection[str], *, progress: Progress | None = None) -> None:
        """Hold exactly these exits from now on, also when the bundle is opened again.

        Blobs that are missing are fetched from the server that the bundle came from; new exits run their self-test.
        Calls in progress end with the plan that they began with; then plans are without the exits that went. New ones
        answer once ``adapt`` has put them into the plan. The network is no longer followed.

        Raises:
            UsageError: the bundle has no such exit.
            TransferError, BlobError, StorageError, SelfTestError: a new exit cannot be had; the old set stays.
        """
        self._in_use.running()
        with self._change:
            self._before()
            self._exchange(exits, chosen_by="caller", progress=progress or SilentProgress())

    def place(self, *, memory_mb: float | None = None, progress: Progress | None = None) -> PlacedExits:
        """Hold the exits worth their memory (MEEdge §3.3), by accuracies that the packager measured and MACs.

        ``memory_mb``: for all branches; None for no limit. Exits whose blobs are not here are fetched; if that fails,
        the result says why, and those that are here are chosen from.

        Raises:
            UsageError: a negative memory.
            StorageError, SelfTestError: a new exit cannot be had; the old set stays.
        """
        self._in_use.running()
        if memory_mb is not None and not memory_mb >= 0:
            raise UsageError(f"the memory for exits is {memory_mb:g} MB; it cannot be negative")
        limit, shown = None if memory_mb is None else round(memory_mb * MB), progress or SilentProgress()
        with self._change:
            self._before()
            bundle = self._in_use.workspace.bundle
            bundle.require_whole("placing exits")
            placed = _placed(bundle.offered.supernet(), limit, None)
            try:
                self._exchange(placed.exits, chosen_by="device", progress=shown)
            except (TransferError, BlobError) as error:
                _log.warning("only exits that are here are placed: %s", error)
                placed = _placed(_with_blobs_here(bundle).supernet, limit, str(error))
                self._exchange(placed.exits, chosen_by="device", progress=shown)
        return placed

    def answer_times_ms(self, images: Array) -> dict[str, float]:
        """Time after the start of a run by which each answer is sure to be there, by source, in order.

        The first call measures the plan's exits for this batch size, so that later deadlines find them measured.
        """
        input_size = self._in_use.running().plan.subnet.input_size
        return self._timed.answer_times_ms(self._samples.either(images, input_size))

    def _exchange(self, exits: Collection[str], *, chosen_by: str, progress: Progress) -> None:
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


def _placed(supernet: Supernet, memory_bytes: int | None, failure: str | None) -> PlacedExits:
    candidates, full_macs = candidates_by_macs(supernet)
    placement = place(candidates, full_time=full_macs, memory_bytes=memory_bytes)
    return PlacedExits(placement.exits, placement.expectation, placement.memory_bytes, failure)
