"""Pages of a plan, loaded when they are needed and freed when something else needs their room."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from device_sdk.bundles.composition import Stretch
from device_sdk.errors import RuntimeFailedError
from device_sdk.execution.paging_plan import Footprint, leaves_first
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime


@dataclass(frozen=True)
class Page:
    """What is loaded as one: where it comes from, and what it takes."""

    read: Callable[[], Stretch]
    footprint: Footprint


@dataclass
class _Resident:
    """A page in memory, and how many calls run it now."""

    loaded: LoadedStretch
    footprint: Footprint
    calls: int = 0


class Pager:
    """Keeps what pages take, while they are loaded, there or run, below ``cap_bytes``. Safe from several threads.

    Requests for pages are serialised, and a waiting caller holds no page, so deadlock is impossible. Calls that run a
    page run concurrently as long as their working sets fit side by side.
    """

    def __init__(self, runtime: Runtime, pages: Sequence[Page], *, cap_bytes: int) -> None:
        self._runtime = runtime
        self._pages = pages
        self._cap_bytes = cap_bytes
        self._turn = threading.Lock()
        self._changed = threading.Condition()  # guards what follows; notified whenever memory is returned
        self._resident: dict[int, _Resident] = {}
        self._used_bytes = 0
        self._closed = False
        self.loads = 0  # how often a page was loaded so far
        self.peak_bytes = 0  # the most that was taken so far, as the footprints state it

    @property
    def closed(self) -> bool:
        """Whether it was closed: then it loads nothing any more."""
        return self._closed

    @contextmanager
    def page(self, number: int) -> Iterator[LoadedStretch]:
        """Page ``number``, which stays until the block ends. A thread takes one page at a time.

        Raises:
            BlobError, CompositionError, RuntimeFailedError: it does not load, or the pager was closed.
        """
        page = self._take(number)
        try:
            yield page.loaded
        finally:
            self._give_back(page)

    def _take(self, number: int) -> _Resident:
        with self._turn:
            with self._changed:
                page = self._resident.get(number)
            if page is None:
                page = self._load(number)
            self._reserve(page.footprint.working_bytes, at=number, pin=page)
            return page

    def _load(self, number: int) -> _Resident:
        page, footprint = self._pages[number], self._pages[number].footprint
        self._reserve(footprint.loading_bytes, at=number)
        try:
            resident = _Resident(self._runtime.load(page.read()), footprint)
        except BaseException:
            self._return(footprint.loading_bytes)
            raise
        with self._changed:
            self._used_bytes += footprint.resident_bytes - footprint.loading_bytes
            self._resident[number] = resident
            self.loads += 1
        return resident

    def _reserve(self, size_bytes: int, *, at: int, pin: _Resident | None = None) -> None:
        """Take ``size_bytes`` once there is room: pages leave for it, and calls that run others are waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._make_room(size_bytes, at))
            if self._closed:
                self._free_idle()  # pages loaded since the pager was closed
                raise RuntimeFailedError("the plan was closed")
            self._used_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self._used_bytes)
            if pin is not None:
                pin.calls += 1

    def _make_room(self, size_bytes: int, at: int) -> bool:
        for number in leaves_first(self._resident, at=at):
            if self._used_bytes + size_bytes <= self._cap_bytes:
                break
            if not self._resident[number].calls:
                self._free(self._resident.pop(number))
        return self._used_bytes + size_bytes <= self._cap_bytes

    def _free(self, page: _Resident) -> None:
        page.loaded.close()
        self._used_bytes -= page.footprint.resident_bytes

    def _give_back(self, page: _Resident) -> None:
        with self._changed:
            page.calls -= 1
            if self._closed:
                self._free_idle()
        self._return(page.footprint.working_bytes)

    def _return(self, size_bytes: int) -> None:
        with self._changed:
            self._used_bytes -= size_bytes
            self._changed.notify_all()

    def release(self) -> None:
        """Evict idle pages; they are loaded again when they are needed."""
        with self._changed:
            self._free_idle()
            self._changed.notify_all()

    def close(self) -> None:
        """Free all pages, those that are running or loading now when that ends. May be called twice."""
        with self._changed:
            self._closed = True
            self._free_idle()
            self._changed.notify_all()

    def _free_idle(self) -> None:
        for number in [number for number, page in self._resident.items() if not page.calls]:
            self._free(self._resident.pop(number))


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

    def close(self) -> None:
        """See the port."""
        self._pager.close()
