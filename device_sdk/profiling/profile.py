"""Profiling: what every block costs on this device, calibrated so that whole subnets are predicted well.

AdaptiveNet §5.1 sums block latencies. A composed subnet is faster than that sum, since the runtime optimises across
block boundaries, so a few dozen measured whole subnets turn sums into predictions (``fitting``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.execution.paging_plan import LOADING_FACTOR, SESSION_BYTES
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.conditions import UNKNOWN, Conditions, current_conditions
from device_sdk.profiling.fitting import MemoryFit, fit_latency, fit_memory
from device_sdk.profiling.stretches import Part, Timing, measure_parts
from device_sdk.profiling.timing import Clock, Latency, Patience
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Runtime
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.paths import k_cheapest, sample_uniformly
from device_sdk.supernet.plan import Edge, ExitChoice, Subnet
from device_sdk.supernet.supernet import Supernet

FORMAT = 4  # of the stored profile; what it cannot read is measured again

_MOST_ROUNDS = 120
_PATIENCE = Patience(rounds=40, precision=0.01, limit_s=4.5, least=8)
_FITTED_SUBNETS = 32


class MeasuredSubnet(msgspec.Struct, frozen=True):
    """A whole subnet that was measured: Σ of its block latencies, its own latency, the peak of its memory if known.

    One that ran ``in_pages``, since it takes more than the memory cap, tells nothing about the others.
    """

    subnet: Subnet
    blocks_ms: float
    measured_ms: float
    peak_bytes: int | None = None
    in_pages: bool = False
    nodes_by_provider: dict[str, int] = {}


class MeasuredEdge(msgspec.Struct, frozen=True):
    """One edge and what it costs alone; ``factor`` · the profile's scale makes that its share in a composed subnet.

    ``change_ms``: what it costs in addition behind a block of another rendition.
    """

    edge: Edge
    cost: EdgeCost
    factor: float = 1.0
    change_ms: float = 0.0


class MeasuredExit(msgspec.Struct, frozen=True):
    """One exit's branch and what it costs alone, at one input size of the path."""

    exit: str
    rendition: str
    cost: EdgeCost
    input_size: tuple[int, ...] = ()


class Profile(msgspec.Struct, frozen=True, tag_field="format", tag=FORMAT):
    """What one bundle costs on one device under its conditions, with one runtime, for one batch size.

    ``fitted``: the full model first. Those of them that did not run in pages decide ``scale``, ``offset_ms`` and
    factors; where there is none, latencies are plain sums of blocks. Under a memory cap the predicted peaks are those
    by which plans are paged: a subnet above the cap does not run in one piece, and not as quickly as predicted.
    ``nodes_by_provider``: how many nodes of the full model each provider of the runtime runs; empty for the CPU alone.
    """

    bundle: str
    device: str
    runtime: str
    batch: int
    created: str
    edges: tuple[MeasuredEdge, ...]
    scale: float
    offset_ms: float
    fitted: tuple[MeasuredSubnet, ...]
    original_ms: float
    exits: tuple[MeasuredExit, ...] = ()
    power_mode: str = UNKNOWN
    driver: str = "none"
    memory_scale: float = 1.0
    memory_offset_bytes: int = 0
    memory_cap_bytes: int | None = None
    nodes_by_provider: dict[str, int] = {}

    @property
    def conditions(self) -> Conditions:
        """Those under which it was measured."""
        return Conditions(self.device, self.power_mode, self.driver)

    def cost_model(self) -> CostModel:
        """Predicts subnets and plans from this profile: edges cost what they cost within a composed subnet."""
        exits = {(measured.exit, measured.rendition, measured.input_size): measured.cost for measured in self.exits}
        return CostModel(
            {measured.edge: self._share(measured) for measured in self.edges},
            scale=self.scale,
            offset_ms=self.offset_ms,
            exit_costs=exits,
            entry_change_ms={measured.edge: measured.change_ms for measured in self.edges if measured.change_ms},
        )

    def _share(self, measured: MeasuredEdge) -> EdgeCost:
        """The offset of memory goes into every working set, of which the largest counts: so it counts once."""
        alone = measured.cost
        return EdgeCost(
            latency_ms=measured.factor * alone.latency_ms,
            p95_latency_ms=measured.factor * alone.p95_latency_ms,
            resident_bytes=round(self.memory_scale * alone.resident_bytes),
            working_bytes=alone.working_bytes + self.memory_offset_bytes,
        )

    def valid_for(
        self,
        bundle: Bundle,
        runtime: Runtime,
        *,
        batch: int = 1,
        conditions: Conditions | None = None,
        memory_cap_bytes: int | None = None,
    ) -> bool:
        """Whether it was measured for just this, under these conditions (those that hold now) and this cap."""
        if self.conditions != (conditions or current_conditions()) or self.memory_cap_bytes != memory_cap_bytes:
            return False
        return (self.bundle, self.runtime, self.batch) == (bundle.digest, runtime.identity, batch)


def profile(
    workspace: Workspace,
    *,
    progress: Progress,
    seed: int = 0,
    batch: int = 1,
    clock: Clock = time.perf_counter_ns,
    patience: Patience = _PATIENCE,
) -> Profile:
    """Measure every edge and every exit alone and a few dozen whole subnets, at ``batch`` on the runtime's threads.

    All of that at every input size of the bundle.

    Under a memory cap parts are timed in turns as far as they fit together, and whole subnets only where they fit in
    one piece; the full model is timed in pages if it does not. ``patience`` is with each of the two measurements, 1
    and 2.

    1. time edges and exits in turns; 2. time whole subnets in turns, noting their memory: the original at every input
    size, the cheapest and random ones, also such that run in one rendition; 3. fit edges and memory to them.

    Raises:
        BlobError, RuntimeFailedError: a block does not load or run.
        MeasurementError: the clock stood still or was set back.
        UsageError: ``batch`` is below 1.
        BudgetError: the memory cap is too small for a block or exit; says the least that works.
    """
    if batch < 1:
        raise UsageError(f"the batch is {batch}; it must be at least 1")
    conditions, supernet, bundle = current_conditions(), workspace.supernet, workspace.bundle
    timing = Timing(rounds=_MOST_ROUNDS, batch=batch, patience=patience, clock=clock)
    with progress.task("profile", 2.0) as task:
        costs = _measure_alone(workspace, timing, task.advance)
        edges = {part.edges[0]: cost for part, cost in costs.items() if part.exit is None}
        subnets = _subnets_to_fit(workspace, CostModel(edges), batch=batch, seed=seed)
        fitted = _measure_deployed(workspace, timing, subnets, edges, task.advance)
    whole = [one for one in fitted if not one.in_pages]
    latency = fit_latency(
        supernet,
        {edge: cost.latency_ms for edge, cost in edges.items()},
        [one.subnet for one in whole],
        [one.measured_ms for one in whole],
    )
    memory = _fitted_memory(edges, whole, workspace)
    return Profile(
        bundle=bundle.digest,
        device=conditions.device,
        runtime=workspace.runtime.identity,
        batch=batch,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        edges=tuple(
            MeasuredEdge(edge, cost, latency.factors[edge], latency.changes_ms.get(edge, 0.0))
            for edge, cost in edges.items()
        ),
        scale=latency.scale,
        offset_ms=latency.offset_ms,
        fitted=fitted,
        original_ms=fitted[0].measured_ms,
        exits=tuple(
            MeasuredExit(part.exit.exit, part.exit.rendition, cost, part.input_size)
            for part, cost in costs.items()
            if part.exit is not None
        ),
        power_mode=conditions.power_mode,
        driver=conditions.driver,
        memory_scale=memory.scale,
        memory_offset_bytes=memory.offset_bytes,
        memory_cap_bytes=workspace.memory_cap_bytes,
        nodes_by_provider=fitted[0].nodes_by_provider,
    )


def _fitted_memory(edges: Mapping[Edge, EdgeCost], whole: Sequence[MeasuredSubnet], workspace: Workspace) -> MemoryFit:
    """Under a cap what paging reckons with, whatever was measured: what is predicted to fit then runs in one piece."""
    if workspace.memory_cap_bytes is not None:
        return MemoryFit(LOADING_FACTOR, SESSION_BYTES)
    return fit_memory(edges, [one.subnet for one in whole], [one.peak_bytes for one in whole])


def _measure_deployed(
    workspace: Workspace,
    timing: Timing,
    subnets: Sequence[Subnet],
    edges: Mapping[Edge, EdgeCost],
    advance: Callable[[float], None],
) -> tuple[MeasuredSubnet, ...]:
    parts = [Part.of(workspace.bundle, subnet.edges) for subnet in subnets]
    measured = measure_parts(workspace, parts, timing, advance=advance)
    return tuple(
        MeasuredSubnet(
            subnet,
            blocks_ms=sum(edges[edge].latency_ms for edge in subnet.edges),
            measured_ms=one.latency.median_ms,
            peak_bytes=one.peak_bytes,
            in_pages=one.in_pages,
            nodes_by_provider=dict(one.nodes_by_provider),
        )
        for subnet, one in zip(subnets, measured, strict=True)
    )


def _measure_alone(workspace: Workspace, timing: Timing, advance: Callable[[float], None]) -> dict[Part, EdgeCost]:
    """What every edge and every exit's branch costs by itself: its time, its weights, the tensors at its ends."""
    bundle = workspace.bundle
    parts = _parts_alone(bundle)
    own = [index for index, part in enumerate(parts) if part.exit is None and not part.input_size]
    largest = max(own, key=lambda index: bundle.supernet.block(parts[index].edges[0].block).macs)
    measured = measure_parts(workspace, parts, timing, reference=largest, advance=advance)
    return {
        part: EdgeCost(
            latency_ms=one.latency.median_ms,
            p95_latency_ms=one.latency.p95_ms,
            resident_bytes=part.weight_bytes,
            working_bytes=_working_bytes(workspace, part, timing),
        )
        for part, one in zip(parts, measured, strict=True)
    }


def _parts_alone(bundle: Bundle) -> list[Part]:
    """Every edge and every exit's branch at every input size; the sizes of one block follow each other."""
    supernet = bundle.supernet
    places = {size: place for place, size in enumerate(supernet.sizes)}
    edges = sorted(
        supernet.edges, key=lambda edge: (supernet.block(edge.block).start, edge.at(()), places[edge.input_size])
    )
    exits = [
        Part.of(bundle, (), ExitChoice(one.id, 1.0, rendition.name), size)
        for one in supernet.exits
        for rendition in one.renditions
        for size in supernet.sizes
        if not size or rendition.any_size
    ]
    return [*(Part.of(bundle, (edge,)) for edge in edges), *exits]


def _working_bytes(workspace: Workspace, part: Part, timing: Timing) -> int:
    """The tensors at its ends; under a cap what paging reckons with."""
    if workspace.memory_cap_bytes is not None:
        return workspace.footprint(part.edges, part.exit, batch=timing.batch).working_bytes
    return timing.batch * _bytes_at_ends(workspace.supernet, part)


def _bytes_at_ends(supernet: Supernet, part: Part) -> int:
    if part.exit is None:
        return sum(cut.nbytes for cut in supernet.ends(part.edges[0]))
    exit_ = supernet.exit(part.exit.exit)
    return supernet.cut_points_at(part.input_size)[exit_.position].nbytes + supernet.exit_tensor(exit_).nbytes


def measure_subnets(
    workspace: Workspace,
    subnets: Sequence[Subnet],
    *,
    rounds: int,
    batch: int = 1,
    patience: Patience | None = None,
    clock: Clock = time.perf_counter_ns,
) -> list[Latency]:
    """The latencies of whole subnets as they are deployed, timed in turns as far as they fit under the cap together."""
    parts = [Part.of(workspace.bundle, subnet.edges) for subnet in subnets]
    timing = Timing(rounds=rounds, batch=batch, patience=patience, clock=clock)
    return [one.latency for one in measure_parts(workspace, parts, timing)]


def _subnets_to_fit(workspace: Workspace, costs: CostModel, *, batch: int, seed: int) -> list[Subnet]:
    """The original first, then the cheapest, the original in each rendition at each input size, and random ones.

    With several renditions a third of the random ones stays as it was drawn, changing its rendition all the time; the
    others run in one rendition wherever they can, as good subnets do. Under a memory cap those behind the original fit
    in one piece: the random ones that do, and the lightest.
    """
    supernet = workspace.supernet
    cheapest = k_cheapest(supernet, costs.edge_latency_ms, k=1)[0][1]
    names = sorted({edge.rendition for edge in supernet.edges})
    whole = [supernet.original, *(supernet.any_size_original.at(size) for size in supernet.sizes[1:])]
    found = [supernet.original, cheapest, *(_in_rendition(supernet, one, name) for one in whole for name in names)]
    for number, drawn in enumerate(sample_uniformly(supernet, count=3 * _FITTED_SUBNETS, random=SplitMix64(seed))):
        ways = [drawn, *(_in_rendition(supernet, drawn, name) for name in names)] if len(names) > 1 else [drawn]
        found.append(ways[number % len(ways)])
    if workspace.memory_cap_bytes is not None:
        lightest = k_cheapest(supernet, lambda edge: costs.edge_costs[edge].resident_bytes, k=_FITTED_SUBNETS // 2)
        found[1:] = [
            one for one in [*found[1:], *(subnet for _, subnet in lightest)] if workspace.fits(one.edges, batch=batch)
        ]
    return list(dict.fromkeys(found))[:_FITTED_SUBNETS]


def _in_rendition(supernet: Supernet, subnet: Subnet, name: str) -> Subnet:
    """``subnet`` with all those blocks in rendition ``name`` that have it at its input size."""
    there = {edge for edge in supernet.edges if edge.rendition == name}
    wanted = [Edge(edge.block, name, edge.input_size) for edge in subnet.edges]
    return Subnet(tuple(new if new in there else edge for new, edge in zip(wanted, subnet.edges, strict=True)))
