"""Running more than fits into memory: what is loaded at once, planned and done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.held_part import HeldBlobs
from device_sdk.errors import BudgetError
from device_sdk.execution.pager import (
    Footprint,
    Page,
    PagedStretch,
    Pager,
    Piece,
    all_stay,
    check_cap,
    footprint,
    least_cap_bytes,
    pages,
)
from device_sdk.execution.plan_segments import PlanSegment, segments
from device_sdk.execution.running_calls import MemoryCap
from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes.port import LoadedStretch, Runtime
from device_sdk.supernet.cost import EdgeCost
from device_sdk.supernet.plan import Edge, ExitChoice, Plan

# Measured with ONNX Runtime 1.31: 40 MB of convolutions take 4.3 to 4.9 times their size while they are loaded and 1.01
# times once the allocator has given back what it freed; matrix products 3.0 to 3.8 times (docs/adr/0016-paging.md).


_INNER_TENSORS = 4  # what a block computes inside, in sizes of its inputs and outputs, where it was not measured


def least_memory_cap_bytes(
    bundle: Bundle, plan: Plan, *, costs: Mapping[Edge, EdgeCost] | None = None, batch: int = 1
) -> int:
    """The smallest cap under which ``plan`` runs in pages: memory of its largest block alone, as it loads or runs."""
    return _least_bytes(bundle, segments(bundle.supernet, plan), costs=costs or {}, batch=batch)


def one_model_footprint(
    bundle: Bundle, edges: Sequence[Edge], exit_: ExitChoice | None = None, *, batch: int = 1
) -> Footprint:
    """Footprint of consecutive edges, or of an exit's branch alone, as one model for batches of ``batch``."""
    return footprint(_pieces(bundle, PlanSegment(tuple(edges), exit_), bundle.loaded_size, {}, batch))


def resident_bytes(bundle: Bundle, found: Sequence[PlanSegment], *, batch: int = 1) -> int:
    """Bytes of segments that all stay loaded, each as one model, while one of them runs on ``batch`` samples."""
    prints = [one_model_footprint(bundle, one.edges, one.exit, batch=batch) for one in found if one.runs]
    return sum(one.resident_bytes for one in prints) + max((one.working_bytes for one in prints), default=0)


def all_pages_stay(bundle: Bundle, plans: Sequence[Sequence[PlanSegment]], cap_bytes: int) -> bool:
    """True if the pages of all ``plans``, each divided for the cap, can stay loaded beside each other."""
    prints: list[Footprint] = []
    for found in plans:
        try:
            divided = pages([_pieces(bundle, one, bundle.loaded_size, {}, 1) for one in found], cap_bytes)
        except BudgetError:
            return False
        prints += [footprint(page) for part in divided for page in part]
    return all_stay(prints, cap_bytes)


def each_edge(bundle: Bundle) -> list[PlanSegment]:
    """Every edge of the supernet at the model's own input size, the largest, as a segment of its own."""
    return [PlanSegment((edge,), None) for edge in bundle.supernet.edges if not edge.input_size]


def largest_batch(bundle: Bundle, found: Sequence[PlanSegment], cap_bytes: int | None, *, wanted: int) -> int:
    """``wanted`` samples at once, or half as many again and again until ``found`` runs in pages under the cap."""
    batch = wanted
    while cap_bytes is not None and batch > 1 and _least_bytes(bundle, found, costs={}, batch=batch) > cap_bytes:
        batch //= 2
    return batch


def room_beside_largest(bundle: Bundle, found: Sequence[PlanSegment], cap_bytes: int) -> int:
    """Bytes of the cap that are left when the largest block of ``found`` is loaded for one sample; at least 0."""
    return max(0, cap_bytes - _least_bytes(bundle, found, costs={}, batch=1))


def stretch_from_disk(
    bundle: Bundle, edges: Sequence[Edge], exit_: ExitChoice | None = None, *, any_size: bool = False
) -> Stretch:
    """As ``Bundle.stretch``, but its blobs are in memory only while it is composed."""
    return bundle.stretch(edges, exit_, held=bundle.hold(bundle.blob_names(edges, exit_)), any_size=any_size)


class PagedEdges:
    """Edges on demand, each a page of its own: loaded when it runs, freed when another needs its room under the cap.

    A call with edges returns the stretch that runs them. Closing one stretch frees all pages; stretches that are made
    afterwards load them again.

    Raises:
        BudgetError: the cap is too small for the largest edge; says the least that works.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, *, cap_bytes: int, batch: int) -> None:
        pieces = [_pieces(bundle, one, bundle.loaded_size, {}, batch) for one in each_edge(bundle)]
        check_cap([piece for page in pieces for piece in page], cap_bytes)
        self._numbers = {one.edges[0]: number for number, one in enumerate(each_edge(bundle))}
        reads = (partial(stretch_from_disk, bundle, (edge,), any_size=True) for edge in self._numbers)
        found = [Page(read, footprint(page)) for read, page in zip(reads, pieces, strict=True)]
        self._make_pager = partial(Pager, runtime, found, cap_bytes=cap_bytes)
        self._pager = self._make_pager()

    def __call__(self, edges: tuple[Edge, ...]) -> LoadedStretch:
        """The stretch that runs ``edges``. Its pages are loaded when it first runs."""
        if self._pager.closed:
            self._pager = self._make_pager()
        return PagedStretch(self._pager, [self._numbers[edge.at(())] for edge in edges])


class PagedSegments:
    """The segments of a plan in pages for ``cap_bytes``. A page is loaded when it first runs, or by ``load_each``.

    ``cap``: counts the memory taken, see ``Pager``.

    Raises:
        BudgetError: the cap is too small for the largest block; says the least that works.
    """

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        found: Sequence[PlanSegment],
        *,
        cap_bytes: int,
        cap: MemoryCap | None = None,
        costs: Mapping[Edge, EdgeCost],
        batch: int,
    ) -> None:
        self._held = bundle.hold(_blob_names(bundle, found))
        divided = pages([_pieces(bundle, one, self._held.size, costs, batch) for one in found], cap_bytes)
        flat = [Page(partial(_read, bundle, self._held, page), footprint(page)) for part in divided for page in part]
        self.pager = Pager(runtime, flat, cap_bytes=cap_bytes, cap=cap)
        self._count = len(flat)
        numbers = iter(range(len(flat)))
        self.stretches = [
            PagedStretch(self.pager, [next(numbers) for _ in part]) if part else None for part in divided
        ]  # one per segment; None where nothing runs

    def load_each(self) -> None:
        """Load all pages once, so that errors show here; an error closes all.

        Raises:
            BlobError, CompositionError, RuntimeFailedError: a page does not load.
        """
        try:
            for number in range(self._count):
                with self.pager.page(number):
                    pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the sessions and the files. May be called twice."""
        self.pager.close()
        self._held.close()


def _least_bytes(bundle: Bundle, found: Sequence[PlanSegment], *, costs: Mapping[Edge, EdgeCost], batch: int) -> int:
    return least_cap_bytes(piece for one in found for piece in _pieces(bundle, one, bundle.loaded_size, costs, batch))


def _blob_names(bundle: Bundle, found: Sequence[PlanSegment]) -> set[str]:
    return {name for one in found if one.runs for name in bundle.blob_names(one.edges, one.exit)}


def _read(bundle: Bundle, held: HeldBlobs, page: Sequence[Piece]) -> Stretch:
    return bundle.stretch([piece.edge for piece in page if piece.edge], page[-1].exit, held=held)


def _pieces(
    bundle: Bundle,
    segment: PlanSegment,
    size: Callable[[str], int],
    costs: Mapping[Edge, EdgeCost],
    batch: int,
) -> list[Piece]:
    if not segment.runs:
        return []
    *others, last = segment.edges or (None,)
    ends: list[tuple[Edge | None, ExitChoice | None]] = [*((edge, None) for edge in others), (last, segment.exit)]
    return [
        Piece(
            edge,
            exit_,
            {name: size(name) for name in bundle.blob_names(() if edge is None else (edge,), exit_)},
            _working_bytes(bundle, edge, exit_, None if edge is None else costs.get(edge), batch),
        )
        for edge, exit_ in ends
    ]


def _working_bytes(
    bundle: Bundle, edge: Edge | None, exit_: ExitChoice | None, cost: EdgeCost | None, batch: int
) -> int:
    """Bytes that a block takes while it runs on ``batch`` samples.

    Its input and output tensors, plus its working set as measured at batch 1, or ``_INNER_TENSORS`` times the tensors.
    """
    supernet = bundle.supernet
    ends_bytes = 0
    if edge is not None:
        ends_bytes = sum(cut.nbytes for cut in supernet.ends(edge))
    if exit_ is not None:
        branch = supernet.exit(exit_.exit)
        ends_bytes += supernet.exit_tensor(branch).nbytes
        ends_bytes += supernet.cut_points[branch.position].nbytes if edge is None else 0
    inner_bytes = _INNER_TENSORS * ends_bytes if cost is None else cost.working_bytes
    return batch * (ends_bytes + inner_bytes)
