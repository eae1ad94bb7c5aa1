"""Profiling: measures every block on this device, and fits the predictions to measured whole subnets.

AdaptiveNet §5.1 sums block latencies. A composed subnet is faster than that sum, since the runtime optimises across
block boundaries, so the sums are corrected with a few dozen measured whole subnets (``fitting``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.execution.pager import LOADING_FACTOR, SESSION_BYTES
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.fitting import MemoryFit, fit_memory
from device_sdk.profiling.home_fitting import Crossing, fit_homes
from device_sdk.profiling.home_subnets import subnets_at_homes
from device_sdk.profiling.plans import CallTimes, call_times, exit_overhead_ms
from device_sdk.profiling.stretches import Part, Timing, measure_parts
from device_sdk.profiling.timing import UNKNOWN, Clock, Conditions, Latency, Patience, current_conditions
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Runtime
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.paths import k_cheapest, sample_uniformly
from device_sdk.supernet.plan import Edge, ExitChoice, Subnet
from device_sdk.supernet.supernet import Supernet

FORMAT = 6  # of the stored profile; a profile of another format is measured again

_MOST_ROUNDS = 120
_PATIENCE = Patience(rounds=40, precision=0.01, limit_s=4.5, least=5)
_FITTED_SUBNETS = 32


class MeasuredSubnet(msgspec.Struct, frozen=True):
    """A measured whole subnet: Σ of its block latencies, its latency, and its peak memory if known.

    A subnet that ran ``in_pages``, because it exceeds the memory cap, is not used for fitting.
    """

    subnet: Subnet
    blocks_ms: float
    measured_ms: float
    peak_bytes: int | None = None
    in_pages: bool = False
    nodes_by_provider: dict[str, int] = {}


class MeasuredEdge(msgspec.Struct, frozen=True):
    """One edge and its cost alone; ``factor`` · the profile's scale gives its share of a composed subnet.

    ``change_ms``: additional cost after a block of another rendition at the same home.
    ``entry_bytes``: of one sample's tensors at its start.
    """

    edge: Edge
    cost: EdgeCost
    factor: float = 1.0
    change_ms: float = 0.0
    entry_bytes: int = 0


class MeasuredExit(msgspec.Struct, frozen=True):
    """One exit's branch and its cost alone, at one input size of the path."""

    exit: str
    rendition: str
    cost: EdgeCost
    input_size: tuple[int, ...] = ()


class Profile(msgspec.Struct, frozen=True, tag_field="format", tag=FORMAT):
    """Measured costs of one bundle on one device under its conditions, with one runtime, for one batch size.

    ``fitted``: measured subnets, the full model first. Those that did not run in pages determine ``scale``,
    ``offset_ms`` and factors; without any, latencies are plain sums of blocks. Under a memory cap the predicted peaks
    are those of the pager: a subnet above the cap runs in pages and slower than predicted. ``nodes_by_provider``:
    number of the full model's nodes per provider of the runtime; empty for the CPU provider. ``exit_overhead_ms``: of
    going on behind an exit, beyond its branch. ``call_overhead_ms``: of a call of a plan, beyond the models that it
    runs; ``decision_ms``: of deciding if a sample at the end is hard, by kind of decider. ``home_offset_ms``: by home,
    in place of ``offset_ms``, of paths at a home other than the first; ``crossings`` between homes.
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
    exit_overhead_ms: float = 0.0
    call_overhead_ms: float = 0.0
    decision_ms: dict[str, float] = {}
    home_offset_ms: dict[str, float] = {}
    crossings: tuple[Crossing, ...] = ()

    @property
    def conditions(self) -> Conditions:
        """The conditions of the measurement."""
        return Conditions(self.device, self.power_mode, self.driver)

    def cost_model(self) -> CostModel:
        """The cost model of this profile, with edge costs as within a composed subnet."""
        exits = {(measured.exit, measured.rendition, measured.input_size): measured.cost for measured in self.exits}
        return CostModel(
            {measured.edge: self._share(measured) for measured in self.edges},
            scale=self.scale,
            offset_ms=self.offset_ms,
            exit_costs=exits,
            entry_change_ms={measured.edge: measured.change_ms for measured in self.edges if measured.change_ms},
            exit_overhead_ms=self.exit_overhead_ms,
            call_overhead_ms=self.call_overhead_ms,
            decision_ms=self.decision_ms,
            home_offset_ms=self.home_offset_ms,
            crossing_ms=self._crossing_ms(),
        )

    def _crossing_ms(self) -> dict[tuple[str, Edge], float]:
        into: dict[str, list[Crossing]] = {}
        for crossing in self.crossings:
            into.setdefault(crossing.after, []).append(crossing)
        return {
            (crossing.before, one.edge): crossing.ms(one.entry_bytes)
            for one in self.edges
            for crossing in into.get(one.edge.home, ())
        }

    @property
    def latency_error(self) -> float:
        """The relative error that one in ten predictions exceeds, of the subnets that were measured; 0 without any."""
        model = self.cost_model()
        whole = [one for one in self.fitted if not one.in_pages and one.measured_ms > 0]
        errors = sorted(abs(model.latency_ms(one.subnet) / one.measured_ms - 1) for one in whole)
        return errors[int(0.9 * (len(errors) - 1))] if errors else 0.0

    def _share(self, measured: MeasuredEdge) -> EdgeCost:
        """The edge's cost within a subnet. The memory offset is added to every working set; only the largest counts."""
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
        """True if this profile holds for these arguments; ``conditions``: the current ones unless given."""
        if self.conditions != (conditions or current_conditions()) or self.memory_cap_bytes != memory_cap_bytes:
            return False
        if not set(bundle.exits) <= {measured.exit for measured in self.exits}:
            return False
        if not set(_held_edges(bundle)) <= {measured.edge.on("") for measured in self.edges}:
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

    1. time edges and exits, interleaved, at every input size; 2. time whole subnets, interleaved, and their memory: the
    original at every input size, the cheapest and random ones, also in a single rendition; 3. time the original with
    all exits; 4. time what calls and decisions take beside it; 5. fit edge costs and memory to all this. ``patience``
    applies to steps 1, 2 and 3 separately.

    Of a bundle in part, the blocks that are held are measured, and instead of whole subnets the path that they make and
    its beginnings; ``original_ms`` is that path's. Steps 3 and 4 are left out then, and under a memory cap.

    Under a memory cap, parts are interleaved as far as they fit together, and whole subnets are timed only if they fit
    in one piece; the full model is timed in pages if it does not.

    Raises:
        BlobError, RuntimeFailedError: a block does not load or run.
        MeasurementError: the clock stood still or was set back.
        UsageError: ``batch`` is below 1, or nothing of the bundle is held.
        BudgetError: the memory cap is too small for a block or exit; the message states the least that works.
    """
    if batch < 1:
        raise UsageError(f"the batch is {batch}; it must be at least 1")
    conditions, supernet, bundle = current_conditions(), workspace.supernet, workspace.bundle
    if not _held_edges(bundle):
        raise UsageError("no block of the bundle is held here: there is nothing to measure")
    timing = Timing(rounds=_MOST_ROUNDS, batch=batch, patience=patience, clock=clock)
    with progress.task("profile", 2.0) as task:
        costs = _measure_alone(workspace, timing, task.advance)
        edges = {part.edges[0]: cost for part, cost in costs.items() if part.exit is None}
        exits = {
            (part.exit.exit, part.exit.rendition, part.input_size): cost for part, cost in costs.items() if part.exit
        }
        subnets = _subnets_to_fit(workspace, CostModel(edges), batch=batch, seed=seed)
        fitted = _measure_deployed(workspace, timing, subnets, edges, task.advance)
        own_ms = {(name, rendition): cost.latency_ms for (name, rendition, size), cost in exits.items() if not size}
        overhead_ms = exit_overhead_ms(workspace, timing, own_ms) if bundle.part.is_whole else 0.0
        calls = call_times(workspace, timing) if bundle.part.is_whole else CallTimes()
    whole = [measured for measured in fitted if not measured.in_pages]
    latency = fit_homes(
        supernet,
        {edge: cost.latency_ms for edge, cost in edges.items()},
        [measured.subnet for measured in whole],
        [measured.measured_ms for measured in whole],
    )
    memory = _fitted_memory(edges, whole, workspace)
    return Profile(
        bundle=bundle.digest,
        device=conditions.device,
        runtime=workspace.runtime.identity,
        batch=batch,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        edges=tuple(
            MeasuredEdge(
                edge,
                cost,
                latency.factors[edge],
                latency.changes_ms.get(edge, 0.0),
                entry_bytes=supernet.ends(edge)[0].nbytes,
            )
            for edge, cost in edges.items()
        ),
        scale=latency.scale,
        offset_ms=latency.offset_ms,
        fitted=fitted,
        original_ms=fitted[0].measured_ms,
        exits=tuple(MeasuredExit(name, rendition, cost, size) for (name, rendition, size), cost in exits.items()),
        power_mode=conditions.power_mode,
        driver=conditions.driver,
        memory_scale=memory.scale,
        memory_offset_bytes=memory.offset_bytes,
        memory_cap_bytes=workspace.memory_cap_bytes,
        nodes_by_provider=fitted[0].nodes_by_provider,
        exit_overhead_ms=overhead_ms,
        call_overhead_ms=calls.overhead_ms,
        decision_ms=dict(calls.decision_ms),
        home_offset_ms=dict(latency.home_offset_ms),
        crossings=latency.crossings,
    )


def _fitted_memory(edges: Mapping[Edge, EdgeCost], whole: Sequence[MeasuredSubnet], workspace: Workspace) -> MemoryFit:
    """The memory fit; under a cap the pager's constants instead, so that its prediction and the pager agree."""
    if workspace.memory_cap_bytes is not None:
        return MemoryFit(LOADING_FACTOR, SESSION_BYTES)
    return fit_memory(edges, [measured.subnet for measured in whole], [measured.peak_bytes for measured in whole])


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
    """The cost of every edge and every exit's branch alone: its latency, weights and boundary tensors."""
    bundle = workspace.bundle
    parts = _parts_alone(workspace)
    firsts = [index for index, part in enumerate(parts) if part.edges and not part.edges[0].home]
    own = [index for index in firsts if not parts[index].input_size]
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


def _parts_alone(workspace: Workspace) -> list[Part]:
    """Every edge at all its homes and every exit's branch, at every input size; the sizes of one block are adjacent."""
    bundle, supernet = workspace.bundle, workspace.supernet
    places = {size: place for place, size in enumerate(supernet.sizes)}
    edges = sorted(
        (one for edge in _held_edges(bundle) for one in workspace.homes.of(supernet, edge)),
        key=lambda edge: (supernet.block(edge.block).start, edge.at(()), places[edge.input_size]),
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
    """Bytes of the boundary tensors; under a cap the pager's estimate."""
    if workspace.memory_cap_bytes is not None:
        return workspace.footprint(part.edges, part.exit, batch=timing.batch).working_bytes
    return timing.batch * _bytes_at_ends(workspace.supernet, part)


def _bytes_at_ends(supernet: Supernet, part: Part) -> int:
    if part.exit is None:
        return sum(cut.nbytes for cut in supernet.ends(part.edges[0]))
    exit_ = supernet.exit(part.exit.exit)
    return supernet.cut_points_at(part.input_size)[exit_.position].nbytes + supernet.exit_tensor(exit_).nbytes


def measure_subnets(workspace: Workspace, subnets: Sequence[Subnet], timing: Timing) -> list[Latency]:
    """The latencies of whole subnets as deployed, interleaved as far as they fit under the cap together.

    Ratios are to the first subnet's; None for those that do not fit beside it.
    """
    parts = [Part.of(workspace.bundle, subnet.edges) for subnet in subnets]
    return [one.latency for one in measure_parts(workspace, parts, timing)]


def _subnets_to_fit(workspace: Workspace, alone: CostModel, *, batch: int, seed: int) -> list[Subnet]:
    """The subnets to measure: the original, the cheapest, the original in each rendition and input size, random ones.

    Of a family the originals of all members, of which each further input size has one, in turn.
    With several renditions, some random subnets keep their mix of renditions; the others use one rendition wherever
    they can, as good subnets do. Under a memory cap all but the original fit in one piece: the random ones that do, and
    the lightest.
    """
    if not workspace.bundle.part.is_whole:
        return _beginnings(workspace, batch=batch)
    supernet, homes = workspace.supernet, workspace.homes
    costs = alone.at_best_homes(homes.of_each(supernet, supernet.edges))
    cheapest = k_cheapest(supernet, costs.edge_latency_ms, k=1)[0][1]
    names = sorted({edge.rendition for edge in supernet.edges})
    at_sizes = [supernet.originals_at(size) for size in supernet.sizes[1:]]
    turns = (members[number % len(members)] for number, members in enumerate(at_sizes))
    whole = [*supernet.originals, *turns]
    chosen = [supernet.original, cheapest, *(supernet.in_rendition(path, name) for path in whole for name in names)]
    for number, drawn in enumerate(sample_uniformly(supernet, count=3 * _FITTED_SUBNETS, random=SplitMix64(seed))):
        variants = [drawn, *(supernet.in_rendition(drawn, name) for name in names)] if len(names) > 1 else [drawn]
        chosen.append(variants[number % len(variants)])
    if workspace.memory_cap_bytes is not None:
        lightest = k_cheapest(supernet, lambda edge: costs.edge_costs[edge].resident_bytes, k=_FITTED_SUBNETS // 2)
        candidates = [*chosen[1:], *(subnet for _, subnet in lightest)]
        chosen[1:] = [subnet for subnet in candidates if workspace.fits(subnet.edges, batch=batch)]
    at_first = list(dict.fromkeys(homes.first(supernet, one) for one in chosen))[:_FITTED_SUBNETS]
    further = [one for one in subnets_at_homes(workspace, at_first, alone) if workspace.fits(one.edges, batch=batch)]
    return [*at_first, *further]


def _held_edges(bundle: Bundle) -> list[Edge]:
    return [edge for edge in bundle.supernet.edges if bundle.part.has(edge)]


def _beginnings(workspace: Workspace, *, batch: int) -> list[Subnet]:
    """The path of the blocks that are held, and its beginnings that fit in one piece, the longest first."""
    following = {workspace.supernet.nodes_of(edge)[0]: edge for edge in reversed(_held_edges(workspace.bundle))}
    path: list[Edge] = []
    node = 0
    while node in following and not following[node].input_size:
        path.append(following[node])
        node = workspace.supernet.nodes_of(path[-1])[1]
    whole, *shorter = (Subnet(tuple(path[:count])) for count in range(len(path), 0, -1))
    return [whole, *(one for one in shorter if workspace.fits(one.edges, batch=batch))]
