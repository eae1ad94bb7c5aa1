"""Division of a path into pages under a memory cap, and the order in which pages are evicted. Pure.

A page is a piece of a path that is loaded and freed as one. Loading a page takes several times its weights for a
moment (the composed bytes, the runtime's copies of them), which then shrink to about the weights: so it is the size
of the largest page that decides how much of the cap is left for those that stay (AdaptiveNet §6 loads block by block).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from device_sdk.errors import BudgetError
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
