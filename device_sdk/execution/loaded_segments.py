"""The loaded segments of a plan, whose answers are corrected by its prior."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import overload

import numpy as np

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.paging import PagedSegments, resident_bytes
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.running_calls import MemoryCap
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime, StopSignal
from device_sdk.supernet.cost import EdgeCost
from device_sdk.supernet.plan import Edge, ExitChoice, Prior


def logit_offsets(prior: Prior) -> Array:
    """Offset of each class's logit under ``prior``: float32 [classes]."""
    return np.asarray(prior.temperature * np.array(prior.log_ratios), dtype=np.float32)


@overload
def corrected(logits: Array, prior: Prior | None) -> Array: ...
@overload
def corrected(logits: Array | None, prior: Prior | None) -> Array | None: ...
def corrected(logits: Array | None, prior: Prior | None) -> Array | None:
    """``logits`` [..., classes] under ``prior``; the same array without one, None where there are none."""
    return logits if logits is None or prior is None else logits + logit_offsets(prior)


class CorrectedStretch:
    """A stretch whose last output is logits, under a prior. Implements the port."""

    def __init__(self, stretch: LoadedStretch, prior: Prior) -> None:
        self._stretch, self._offsets = stretch, logit_offsets(prior)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        return self._corrected(self._stretch.run(inputs))

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port."""
        outputs = self._stretch.run_until(inputs, stop)
        return None if outputs is None else self._corrected(outputs)

    def close(self) -> None:
        """See the port."""
        self._stretch.close()

    def _corrected(self, outputs: list[Array]) -> list[Array]:
        return [*outputs[:-1], outputs[-1] + self._offsets]


class LoadedSegments:
    """Segments that are ready to run: each is one model, or under a memory cap all of them share it in pages.

    ``stretches``: one per segment, in order; None where nothing runs. ``prior``: of classes, applied to the logits of
    segments that end with an exit or at the output. ``cap``: that of the model, shared with its other
    plans; pages are made for ``memory_cap_bytes`` and loaded when they first run. Without it the segments have a cap of
    their own, and all pages are loaded once, so that errors show here. The other arguments are those of ``LoadedPlan``.

    Raises:
        BudgetError: the cap is too small for the largest block; says the least that works.
        BlobError, CompositionError, RuntimeFailedError: a segment does not load.
    """

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        found: Sequence[PlanSegment],
        *,
        memory_cap_bytes: int | None = None,
        cap: MemoryCap | None = None,
        costs: Mapping[Edge, EdgeCost] | None = None,
        batch: int = 1,
        prior: Prior | None = None,
    ) -> None:
        self._paged: PagedSegments | None = None
        self.stretches: list[LoadedStretch | None]
        self._cap, self._whole_bytes = cap, 0  # of what is loaded without pages, all together
        self._counted = False
        self._give_back: Callable[[], object] = lambda: None
        if memory_cap_bytes is None:
            self.stretches = [runtime.load(bundle.stretch(one.edges, one.exit)) if one.runs else None for one in found]
            self._whole_bytes = resident_bytes(bundle, found, batch=batch)
        else:
            self._paged = PagedSegments(
                bundle, runtime, found, cap_bytes=memory_cap_bytes, cap=cap, costs=costs or {}, batch=batch
            )
            if cap is None:
                self.load_each()
            self.stretches = [*self._paged.stretches]
        if prior is not None:
            self.stretches = [
                CorrectedStretch(stretch, prior) if stretch is not None and _ends_in_logits(bundle, one) else stretch
                for one, stretch in zip(found, self.stretches, strict=True)
            ]

    @property
    def taken_bytes(self) -> int:
        """Bytes that these segments take now, as their footprints estimate them."""
        return self._whole_bytes if self._paged is None else self._paged.pager.taken_bytes

    @property
    def page_loads(self) -> int | None:
        """Number of page loads so far; None without a memory cap."""
        return None if self._paged is None else self._paged.pager.loads

    def load_each(self) -> None:
        """Load all pages once, so that errors show now; an error closes all. Raises as the constructor."""
        if self._paged is not None:
            self._paged.load_each()

    def count(self) -> None:
        """Count segments loaded without pages under the model's cap until they are closed: another plan needs the room.

        They are not counted before, since they cannot be evicted.
        """
        if self._cap is not None and not self._counted:
            self._counted = True
            self._cap.take(self._whole_bytes)
            self._give_back = weakref.finalize(self, self._cap.take, -self._whole_bytes)

    def release(self) -> None:
        """Evict idle pages; they are loaded again when they are needed. Without a memory cap this does nothing."""
        if self._paged is not None:
            self._paged.pager.release()

    def close(self) -> None:
        """Free the sessions. May be called twice."""
        for stretch in self.stretches:
            if stretch is not None:
                stretch.close()
        if self._paged is not None:
            self._paged.close()
        self._give_back()


def _ends_in_logits(bundle: Bundle, segment: PlanSegment) -> bool:
    supernet = bundle.supernet
    return segment.exit is not None or supernet.block(segment.edges[-1].block).end == supernet.output_index


def load_part(
    bundle: Bundle,
    runtime: Runtime,
    edges: Sequence[Edge],
    exit_: ExitChoice | None = None,
    *,
    memory_cap_bytes: int | None = None,
    batch: int = 1,
    prior: Prior | None = None,
) -> LoadedStretch:
    """Consecutive edges, or an exit's branch alone, ready to run. Raises as ``LoadedSegments``."""
    found = [PlanSegment(tuple(edges), exit_)]
    loaded = LoadedSegments(bundle, runtime, found, memory_cap_bytes=memory_cap_bytes, batch=batch, prior=prior)
    [stretch] = loaded.stretches
    assert stretch is not None
    return stretch
