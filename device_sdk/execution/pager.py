"""Pages of a plan, loaded when they are needed and freed when others need their room."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from device_sdk.errors import RuntimeFailedError
from device_sdk.execution.memory_cap import MemoryCap, PlanRetired
from device_sdk.execution.paging_plan import Footprint, leaves_first
from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes.allocator import give_back_freed_memory
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime
from device_sdk.runtimes.stop_signal import StopSignal

_TRIM_SHARE = 0.25  # of the cap, freed while loading, before it is returned to the system


@dataclass(frozen=True)
class Page:
    """A part of a plan that is loaded and freed as one: ``read`` composes it, ``footprint`` is its memory."""

    read: Callable[[], Stretch]
    footprint: Footprint


@dataclass
class _Resident:
    """A page in memory; ``calls``: number of calls that run it now."""

    loaded: LoadedStretch
    footprint: Footprint
    calls: int = 0


class Pager:
    """Keeps the memory of pages below a cap, while they load, stay and run. Safe from several threads.

    Requests for pages are serialised, and a waiting caller holds at most the page that it is about to run, so deadlock
    is impossible. Calls that run a page run concurrently as long as their working sets fit side by side.

    ``cap``: shared with other pagers of the model, and may change at any time; by default one of its own of
    ``cap_bytes``.
    """

    def __init__(
        self, runtime: Runtime, pages: Sequence[Page], *, cap_bytes: int | None = None, cap: MemoryCap | None = None
    ) -> None:
        self._runtime = runtime
        self._pages = pages
        self._cap = cap or MemoryCap(cap_bytes)
        self._resident: dict[int, _Resident] = {}  # this and what follows is guarded by the cap's condition
        self._closed = False
        self._freed_bytes = 0  # guarded by the cap's turn
        self.loads = 0  # how often a page was loaded so far
        self._cap.register(self)
        weakref.finalize(self, _give_back_all, self._cap, self._resident)

    @property
    def peak_bytes(self) -> int:
        """The most that was taken under the cap so far, as the footprints state it."""
        return self._cap.peak_bytes

    @property
    def taken_bytes(self) -> int:
        """Bytes of the loaded pages, plus the working sets of the calls that run now."""
        with self._cap.changed:
            pages = list(self._resident.values())
            return sum(one.footprint.resident_bytes + one.calls * one.footprint.working_bytes for one in pages)

    @property
    def closed(self) -> bool:
        """True once it was closed: no page is loaded any more."""
        return self._closed

    @contextmanager
    def page(self, number: int) -> Iterator[LoadedStretch]:
        """Page ``number``, which stays until the block ends. A thread takes one page at a time.

        Raises:
            BlobError, CompositionError, RuntimeFailedError: it does not load, or the pager was closed.
            PlanRetired: the page does not fit under a cap that was lowered.
        """
        page = self._take(number)
        try:
            yield page.loaded
        finally:
            self._give_back(page)

    def _take(self, number: int) -> _Resident:
        with self._cap.turn:
            with self._cap.changed:
                page = self._resident.get(number)
                if page is not None:
                    page.calls += 1  # so that it is not evicted while room for its run is made
            if page is None:
                page = self._load(number)
            try:
                self._reserve(page.footprint.working_bytes, at=number, beside=page.footprint.resident_bytes)
            except BaseException:
                self._unpin(page)
                raise
            return page

    def _load(self, number: int) -> _Resident:
        page, footprint = self._pages[number], self._pages[number].footprint
        self._reserve(footprint.loading_bytes, at=number)
        try:
            resident = _Resident(self._runtime.load(page.read()), footprint, calls=1)
        except BaseException:
            self._cap.take(-footprint.loading_bytes)
            raise
        with self._cap.changed:
            self._cap.take(footprint.resident_bytes - footprint.loading_bytes)
            self._resident[number] = resident
            self.loads += 1
        self._trim(footprint.loading_bytes - footprint.resident_bytes)
        return resident

    def _trim(self, freed_bytes: int) -> None:
        """Return memory freed by loading to the system, once it adds up: small sessions leave it to the allocator."""
        self._freed_bytes += freed_bytes
        cap_bytes = self._cap.cap_bytes
        if cap_bytes is not None and self._freed_bytes > _TRIM_SHARE * cap_bytes:
            self._freed_bytes = 0
            give_back_freed_memory()

    def _reserve(self, size_bytes: int, *, at: int, beside: int = 0) -> None:
        """Take ``size_bytes`` once there is room: pages leave for it, and calls that run others are waited for."""
        with self._cap.changed:
            self._cap.changed.wait_for(
                lambda: self._closed or self._cap.never_fits(size_bytes + beside) or self._make_room(size_bytes, at)
            )
            if self._closed:
                self.evict_idle()  # pages loaded since the pager was closed
                raise RuntimeFailedError("the plan was closed")
            if self._cap.never_fits(size_bytes + beside):
                raise PlanRetired
            self._cap.take(size_bytes)

    def _make_room(self, size_bytes: int, at: int) -> bool:
        if self._cap.make_room(size_bytes, keeping=self):
            return True
        for number in leaves_first(self._resident, at=at):
            if not self._resident[number].calls:
                self._free(self._resident.pop(number))
            if self._cap.has_room(size_bytes):
                return True
        return False

    def _free(self, page: _Resident) -> None:
        page.loaded.close()
        self._cap.take(-page.footprint.resident_bytes)

    def _give_back(self, page: _Resident) -> None:
        self._unpin(page)
        self._cap.take(-page.footprint.working_bytes)

    def _unpin(self, page: _Resident) -> None:
        with self._cap.changed:
            page.calls -= 1
            if self._closed or not self._cap.has_room(0):
                self.evict_idle()

    def release(self) -> None:
        """Evict idle pages; they are loaded again when they are needed."""
        with self._cap.changed:
            self.evict_idle()

    def close(self) -> None:
        """Free all pages, those that are running or loading now when that ends. May be called twice."""
        with self._cap.changed:
            self._closed = True
            self.evict_idle()
            self._cap.changed.notify_all()

    def evict_idle(self) -> None:
        """See ``Evictable``."""
        for number in [number for number, page in self._resident.items() if not page.calls]:
            self._free(self._resident.pop(number))


def _give_back_all(cap: MemoryCap, resident: dict[int, _Resident]) -> None:
    """Free the pages that a pager still held when it was dropped without ``close``."""
    with cap.changed:
        for page in resident.values():
            page.loaded.close()
            cap.take(-page.footprint.resident_bytes)
        resident.clear()


class PagedStretch:
    """Consecutive pages that run as one stretch; implements the runtime port's ``LoadedStretch``."""

    def __init__(self, pager: Pager, numbers: Sequence[int]) -> None:
        self._pager = pager
        self._numbers = numbers

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port.

        Raises:
            BlobError: a page has to be read again, and its blob is damaged.
        """
        features = list(inputs)
        for number in self._numbers:
            with self._pager.page(number) as loaded:
                features = loaded.run(features)
        return features

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port. Raises as ``run``."""
        features: list[Array] | None = list(inputs)
        for number in self._numbers:
            if features is None or stop.is_set:
                return None
            with self._pager.page(number) as loaded:
                features = loaded.run_until(features, stop)
        return features

    def close(self) -> None:
        """See the port."""
        self._pager.close()
