"""A bundle on a runtime under a memory cap: loads parts of it to run, to measure and to search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.loaded_segments import LoadedSegments, load_part
from device_sdk.execution.open_homes import ONE_HOME, OpenHomes
from device_sdk.execution.pager import Footprint
from device_sdk.execution.paging import each_edge, largest_batch, one_model_footprint, room_beside_largest
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.running_calls import MemoryCap
from device_sdk.runtimes.port import LoadedStretch, Runtime
from device_sdk.supernet.cost import EdgeCost
from device_sdk.supernet.plan import Edge, ExitChoice, Plan, Prior
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class Workspace:
    """One bundle, one runtime, and a cap on all memory that is loaded beyond the bare runtime.

    ``memory_cap_bytes``: None for no limit. Parts above the cap run in pages, in smaller batches. ``prior``: of
    classes, applied to the logits of segments and stretches; plans have their own. ``homes``: that are open here.
    """

    bundle: Bundle
    runtime: Runtime
    memory_cap_bytes: int | None = None
    prior: Prior | None = None
    homes: OpenHomes = ONE_HOME

    @property
    def supernet(self) -> Supernet:
        """The bundle's graph."""
        return self.bundle.supernet

    def of(self, bundle: Bundle) -> Workspace:
        """The same for another bundle, or for the same one with other exits."""
        return replace(self, bundle=bundle)

    def load_plan(
        self,
        plan: Plan,
        *,
        cap: MemoryCap | None = None,
        costs: Mapping[Edge, EdgeCost] | None = None,
        batch: int = 1,
    ) -> LoadedPlan:
        """``plan``, ready to run on batches of up to ``batch``; ``cap`` as for ``LoadedSegments``.

        Raises as ``LoadedPlan``.
        """
        cap_bytes = self.memory_cap_bytes
        return LoadedPlan(
            self.bundle, self.runtime, plan, memory_cap_bytes=cap_bytes, cap=cap, costs=costs, batch=batch
        )

    def load_segments(self, segments: Sequence[PlanSegment], *, batch: int = 1) -> LoadedSegments:
        """Segments that share the cap, ready to run. Raises as ``LoadedSegments``."""
        cap_bytes = self.memory_cap_bytes
        return LoadedSegments(
            self.bundle, self.runtime, segments, memory_cap_bytes=cap_bytes, batch=batch, prior=self.prior
        )

    def load_stretch(self, edges: Sequence[Edge], exit_: ExitChoice | None = None, *, batch: int = 1) -> LoadedStretch:
        """Consecutive edges, or an exit's branch alone, ready to run. Raises as ``LoadedSegments``."""
        cap_bytes = self.memory_cap_bytes
        return load_part(
            self.bundle, self.runtime, edges, exit_, memory_cap_bytes=cap_bytes, batch=batch, prior=self.prior
        )

    def load_at_any_size(self, edges: tuple[Edge, ...]) -> LoadedStretch:
        """Consecutive edges as one model that runs at every input size of the bundle, outside of the cap."""
        return self.runtime.load(self.bundle.stretch(edges, any_size=True))

    def taking_turns(self) -> Workspace:
        """The same for many models of which one runs at a time: they share their working memory."""
        return replace(self, runtime=self.runtime.taking_turns())

    def largest_batch(self, segments: Sequence[PlanSegment], *, wanted: int) -> int:
        """``wanted`` samples at once, or half as many again and again until ``segments`` run in pages under the cap."""
        return largest_batch(self.bundle, segments, self.memory_cap_bytes, wanted=wanted)

    def footprint(self, edges: Sequence[Edge], exit_: ExitChoice | None = None, *, batch: int = 1) -> Footprint:
        """Footprint of consecutive edges, or of an exit's branch alone, as one model."""
        return one_model_footprint(self.bundle, edges, exit_, batch=batch)

    def fits(self, edges: Sequence[Edge], exit_: ExitChoice | None = None, *, batch: int = 1) -> bool:
        """True if these edges, or this branch, run as one model under the cap."""
        cap_bytes = self.memory_cap_bytes
        return cap_bytes is None or self.footprint(edges, exit_, batch=batch).least_bytes <= cap_bytes

    def room_for_features(self, wanted_bytes: int) -> int:
        """Bytes for features that are kept: under a cap at most half of what the largest edge leaves."""
        if self.memory_cap_bytes is None:
            return wanted_bytes
        return min(wanted_bytes, room_beside_largest(self.bundle, each_edge(self.bundle), self.memory_cap_bytes) // 2)
