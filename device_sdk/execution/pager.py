"""Pages of a plan under a memory cap: which are loaded at once, and exchanging them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from device_sdk.errors import BudgetError, RuntimeFailedError
from device_sdk.execution.running_calls import MemoryCap, PlanRetired
from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes.onnx_runtime import give_back_freed_memory
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime, StopSignal
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import Edge, ExitChoice

# Measured with ONNX Runtime 1.31: 40 MB of convolutions take 4.3 to 4.9 times their size while they are loaded and 1.01
# times once the allocator has given back what it freed; matrix products 3.0 to 3.8 times (docs/adr/0016-paging.md).
LOADING_FACTOR = 5.0  # peak while loading / weights
RESIDENT_FACTOR = 1.1  # what stays / weights
SESSION_BYTES = 512 * 1024  # what a session takes besides its weights


@dataclass(frozen=True)
class Piece:
    """An indivisible part of a path: a block, together with the branch of the exit behind it if the plan has one there.

    Without ``edge`` it is an exit's branch alone, which runs on given features.

    ``weights``: bytes of each blob that it needs, by name: pieces that share one count it once where they are loaded
    together. ``working_bytes``: memory in addition while it runs, its inputs and outputs included.
    """

    edge: Edge | None
    exit: ExitChoice | None
    weights: Mapping[str, int]
    working_bytes: int

    def __str__(self) -> str:
        return f"exit {self.exit.exit}" if self.edge is None and self.exit is not None else f"block {self.edge}"


@dataclass(frozen=True)
class Footprint:
    """Memory of a page: while it is loaded, from then on, and in addition while it runs."""

    loading_bytes: int
    resident_bytes: int
    working_bytes: int

    @property
    def least_bytes(self) -> int:
        """Bytes that this page needs to load and run alone."""
        return max(self.loading_bytes, self.resident_bytes + self.working_bytes)


def footprint(pieces: Sequence[Piece]) -> Footprint:
    """Footprint of ``pieces`` loaded as one page."""
    weights = _weights(pieces)
    return Footprint(
        loading_bytes=round(LOADING_FACTOR * weights) + SESSION_BYTES,
        resident_bytes=round(RESIDENT_FACTOR * weights) + SESSION_BYTES,
        working_bytes=max(piece.working_bytes for piece in pieces),
    )


def least_cap_bytes(pieces: Iterable[Piece]) -> int:
    """The smallest cap under which ``pieces`` run: that of the largest, alone; 0 where there are none."""
    return max((footprint([piece]).least_bytes for piece in pieces), default=0)


def pages(stretches: Sequence[Sequence[Piece]], cap_bytes: int) -> list[list[list[Piece]]]:
    """Divide each stretch into pages, so that under ``cap_bytes`` as few as possible have to be loaded again.

    1. Everything in one page per stretch, if that can be loaded and stay. 2. Else the largest pages with which all can
    stay, so that nothing is ever loaded twice. 3. Else pages as small as the largest piece, which has to be loaded
    somehow: what smaller ones would save elsewhere, they pay in sessions.

    Raises:
        BudgetError: the cap is too small for the largest piece; says the least that works.
    """
    every = [piece for stretch in stretches for piece in stretch]
    check_cap(every, cap_bytes)
    smallest = max((_weights([piece]) for piece in every), default=0)
    limits = [smallest * 2**doublings for doublings in range(_DOUBLINGS, -1, -1)]
    for limit in limits:
        divided = [_pack(stretch, limit, cap_bytes) for stretch in stretches]
        if all_stay([footprint(page) for stretch in divided for page in stretch], cap_bytes):
            return divided
    return [_pack(stretch, smallest, cap_bytes) for stretch in stretches]


_DOUBLINGS = 16


def check_cap(pieces: Sequence[Piece], cap_bytes: int) -> None:
    """Refuse a cap under which the largest of ``pieces`` does not run alone (BudgetError with the least that works)."""
    least = least_cap_bytes(pieces)
    if cap_bytes >= least:
        return
    largest = max(pieces, key=lambda piece: footprint([piece]).least_bytes)
    raise BudgetError(
        f"a memory cap of {cap_bytes / MB:.2f} MB is too small: {largest} alone takes {least / MB:.2f} MB",
        hint=f"allow at least {-(-least // 10_000) / 100:.2f} MB",
    )


def _pack(stretch: Sequence[Piece], limit: int, cap_bytes: int) -> list[list[Piece]]:
    """Pages of consecutive pieces, each with at most ``limit`` bytes of weights and none above the cap."""
    packed: list[list[Piece]] = []
    for piece in stretch:
        if packed:
            together = [*packed[-1], piece]
            if _weights(together) <= limit and footprint(together).least_bytes <= cap_bytes:
                packed[-1] = together
                continue
        packed.append([piece])
    return packed


def all_stay(prints: Sequence[Footprint], cap_bytes: int) -> bool:
    """True if pages of these footprints can be loaded one after the other and all stay while any of them runs."""
    resident = 0
    for one in prints:
        if resident + one.loading_bytes > cap_bytes:
            return False
        resident += one.resident_bytes
        if resident + one.working_bytes > cap_bytes:
            return False
    return resident + max((one.working_bytes for one in prints), default=0) <= cap_bytes


def _weights(pieces: Iterable[Piece]) -> int:
    return sum({name: size for piece in pieces for name, size in piece.weights.items()}.values())


def leaves_first(resident: Collection[int], *, at: int) -> list[int]:
    """The resident pages in the order in which they should leave when a call needs page ``at``.

    A call passes the pages in order and the next one begins at the first, so it is known which is needed last: the one
    that the call has just passed, before those further back, before those still to come, the last first. Leaving out
    the least recently used instead would throw out exactly what is needed next. Exits agree: later pages are needed by
    fewer samples.
    """
    passed = sorted((page for page in resident if page < at), reverse=True)
    ahead = sorted((page for page in resident if page > at), reverse=True)
    return passed + ahead


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
