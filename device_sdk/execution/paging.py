"""A plan under a memory cap: its path in pages that are loaded when they are needed (AdaptiveNet §6: block by block).

Blobs are held open and read whenever a page is loaded; nothing of them stays in memory but the runtime's sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.composition import Stretch
from device_sdk.bundles.held_blobs import HeldBlobs
from device_sdk.cost import EdgeCost
from device_sdk.execution.pager import Page, PagedStretch, Pager
from device_sdk.execution.paging_plan import Piece, footprint, least_cap_bytes, pages
from device_sdk.execution.plan_segments import PlanSegment, segments
from device_sdk.graph import Edge, ExitChoice, Plan
from device_sdk.runtimes.port import Runtime

_INNER_TENSORS = 4  # what a block computes inside, in sizes of its inputs and outputs, where nobody measured it


def least_memory_cap_bytes(
    bundle: Bundle, plan: Plan, *, costs: Mapping[Edge, EdgeCost] | None = None, batch: int = 1
) -> int:
    """The smallest cap under which ``plan`` runs in pages: what its largest block takes while it is loaded."""
    found = segments(bundle.supernet, plan)
    sizes = {name: bundle.blob_size(name) for name in _blob_names(bundle, found)}
    return least_cap_bytes(piece for one in found for piece in _pieces(bundle, one, sizes, costs or {}, batch))


class PagedSegments:
    """The segments of a plan in pages under ``cap_bytes``. All pages are loaded once, so that what fails, fails here.

    Raises:
        BudgetError: the cap is too small for the largest block; says the least that works.
        BlobError, CompositionError, RuntimeFailedError: a page does not load.
    """

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        found: Sequence[PlanSegment],
        *,
        cap_bytes: int,
        costs: Mapping[Edge, EdgeCost],
        batch: int,
    ) -> None:
        names = _blob_names(bundle, found)
        self._held = bundle.hold(names)
        sizes = {name: self._held.size(name) for name in names}
        divided = pages([_pieces(bundle, one, sizes, costs, batch) for one in found], cap_bytes)
        flat = [Page(partial(_read, bundle, self._held, page), footprint(page)) for part in divided for page in part]
        self.pager = Pager(runtime, flat, cap_bytes=cap_bytes)
        numbers = iter(range(len(flat)))
        self.stretches = [
            PagedStretch(self.pager, [next(numbers) for _ in part]) if part else None for part in divided
        ]  # one per segment; None where it has no edges
        self._load_each(len(flat))

    def _load_each(self, count: int) -> None:
        try:
            for number in range(count):
                with self.pager.page(number):
                    pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the sessions and the files. May be called twice."""
        self.pager.close()
        self._held.close()


def _blob_names(bundle: Bundle, found: Sequence[PlanSegment]) -> set[str]:
    return {name for one in found if one.edges for name in bundle.blob_names(one.edges, one.exit)}


def _read(bundle: Bundle, held: HeldBlobs, page: Sequence[Piece]) -> Stretch:
    return bundle.stretch([piece.edge for piece in page], page[-1].exit, held=held)


def _pieces(
    bundle: Bundle, segment: PlanSegment, sizes: Mapping[str, int], costs: Mapping[Edge, EdgeCost], batch: int
) -> list[Piece]:
    if not segment.edges:
        return []
    ends = [None] * (len(segment.edges) - 1) + [segment.exit]
    return [
        Piece(
            edge,
            exit_,
            {name: sizes[name] for name in bundle.blob_names((edge,), exit_)},
            _working_bytes(bundle, edge, exit_, costs.get(edge), batch),
        )
        for edge, exit_ in zip(segment.edges, ends, strict=True)
    ]


def _working_bytes(bundle: Bundle, edge: Edge, exit_: ExitChoice | None, cost: EdgeCost | None, batch: int) -> int:
    """What a block takes while it runs on ``batch`` samples: as measured at batch 1, at least its tensors."""
    supernet = bundle.supernet
    block = supernet.block(edge.block)
    ends_bytes = supernet.cut_points[block.start].nbytes + supernet.cut_points[block.end].nbytes
    if exit_ is not None:
        ends_bytes += supernet.exit_tensor(supernet.exit(exit_.exit)).nbytes
    inner_bytes = _INNER_TENSORS * ends_bytes if cost is None else cost.working_bytes
    return batch * (ends_bytes + inner_bytes)
