"""Timing and memory of parts of paths, in groups that fit into memory."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import golden_inputs
from device_sdk.execution.pager import Footprint, all_stay
from device_sdk.execution.paging import stretch_from_disk
from device_sdk.execution.workspace import Workspace
from device_sdk.machine import peak_resident_bytes, resident_bytes
from device_sdk.profiling.timing import Clock, Latency, Patience, measure_interleaved
from device_sdk.profiling.timing import device_identity as device_identity
from device_sdk.runtimes.onnx_runtime import give_back_freed_memory
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.supernet.blocks import CutPoint
from device_sdk.supernet.cost import MB
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import Edge, ExitChoice

_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

Result = TypeVar("Result")


def peak_during(work: Callable[[], Result]) -> tuple[Result, int | None]:
    """Run ``work``; returns its result and the growth of the process at its peak, in bytes (None: not Linux).

    Memory of other threads counts as well. The system's resolution is some 100 kB.
    """
    give_back_freed_memory()
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)
    before = resident_bytes()
    result = work()
    peak = peak_resident_bytes()
    return result, None if before is None or peak is None else max(0, peak - before)


WARMUP = 2  # rounds, behind the first runs of each part
GROUP_BYTES = 128 * MB  # loaded at once: weights, and arenas of whole subnets
_ARENA_TENSORS = 4  # size of a session's arena, in units of its largest block's inputs and outputs
PAGED_ROUNDS, _PAGED_WARMUP = 10, 1  # for plans that reload their pages in every call, which takes 100 times as long
FIRST_RUNS = 2  # runs after which a runtime has allocated its working memory


@dataclass(frozen=True)
class Part:
    """A unit of timing: consecutive edges, or an exit's branch alone. ``weight_bytes``: size of its blobs, loaded.

    ``input_size``: of its path; empty for the model's own. ``own_size``: its session is for that size alone.
    """

    edges: tuple[Edge, ...]
    exit: ExitChoice | None
    weight_bytes: int
    input_size: tuple[int, ...] = ()
    own_size: bool = False

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        edges: Sequence[Edge] = (),
        exit_: ExitChoice | None = None,
        input_size: tuple[int, ...] = (),
    ) -> Part:
        """The part of ``bundle`` with the size of its distinct blobs. ``input_size`` applies if there are no edges.

        Raises:
            BlobError: a blob is missing.
        """
        names = dict.fromkeys(bundle.blob_names(edges, exit_))
        size = edges[0].input_size if edges else input_size
        own_size = len(edges) > 1 or any(edge.home and not Home.parse(edge.home).on_processor for edge in edges)
        return cls(tuple(edges), exit_, sum(map(bundle.loaded_size, names)), size, own_size)

    @property
    def model(self) -> Hashable:
        """A key that is equal for parts that share a session: the same single block or branch at any input size.

        Several edges are timed as deployed, in a session for their input size, as is one whose provider compiles for
        fixed shapes.
        """
        return (self.edges if self.own_size else tuple(edge.at(()) for edge in self.edges)), self.exit


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Timing settings: at most ``rounds``, fewer with ``patience``, on batches of ``batch``, ``pause_s`` apart.

    ``percentile``: another one besides the median.
    """

    rounds: int
    pause_s: float = 0.0
    percentile: float | None = None
    batch: int = 1
    patience: Patience | None = None
    clock: Clock = time.perf_counter_ns


@dataclass(frozen=True)
class Measured:
    """A part's latency, and the peak growth of the process while it was loaded and first run (None: unknown).

    ``in_pages``: it exceeds the memory cap, so every call reloaded its pages. ``nodes_by_provider``: number of its
    nodes per provider of the runtime; empty where unknown.
    """

    latency: Latency
    peak_bytes: int | None
    in_pages: bool = False
    nodes_by_provider: Mapping[str, int] = field(default_factory=dict)


def groups(sizes: Sequence[int], *, limit: int, reference: int) -> list[list[int]]:
    """Partition indices into groups of total size ``limit``; each has ``reference`` and at least one other index."""
    grouped: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if index == reference:
            continue
        if not grouped or size > room:
            grouped.append([reference])
            room = limit - sizes[reference]
        grouped[-1].append(index)
        room -= size
    return [sorted(group) for group in grouped] or [[reference]]


def groups_that_stay(prints: Sequence[Footprint], cap_bytes: int, *, reference: int) -> list[list[int]]:
    """Partition indices into groups that can be loaded at once under the cap, each with ``reference`` if it fits.

    A part that exceeds the cap by itself is a group of its own.
    """

    def stays(group: Sequence[int]) -> bool:
        return all_stay([prints[index] for index in sorted(group)], cap_bytes)

    grouped: list[list[int]] = []
    for index in range(len(prints)):
        if index == reference:
            continue
        if grouped and stays([*grouped[-1], index]):
            grouped[-1].append(index)
        else:
            grouped.append([reference, index] if stays([reference, index]) else [index])
    if not any(reference in group for group in grouped):
        grouped.insert(0, [reference])
    return [sorted(group) for group in grouped]


def measure_parts(
    workspace: Workspace,
    parts: Sequence[Part],
    timing: Timing,
    *,
    reference: int = 0,
    advance: Callable[[float], None] = lambda share: None,
) -> list[Measured]:
    """Load each part, record its memory, and time all of them, interleaved, on golden inputs [batch, *shape].

    Parts that do not fit in memory at once are timed in groups, each with ``parts[reference]``. Latencies are
    normalised by the reference's latency in the group over that in the first group, to cancel speed drift. Under a
    memory cap, a group without room for the reference is not normalised, and has no ratios to it; a part that does not
    fit in one piece runs in pages, as deployed. ``advance`` is called with the share of the work just done.

    Raises:
        BlobError, RuntimeFailedError: a part does not load or run.
        BudgetError: the memory cap is too small for the largest block; the message states the least that works.
        MeasurementError: the clock stood still or was set back.
    """
    results: dict[int, Measured] = {}
    first_ms: float | None = None
    grouped = _grouped(workspace, parts, timing, reference=reference)
    for group in grouped:
        share = _Share(advance, 1 / len(grouped), steps=len(group) + WARMUP + timing.rounds)
        timed = replace(timing, patience=timing.patience and timing.patience.shared_by(len(grouped)))
        place = group.index(reference) if reference in group else None
        measured = _measure_group(workspace, [parts[index] for index in group], timed, share.step, reference=place)
        share.finish()
        speed = 1.0
        if place is not None:
            reference_ms = measured[place].latency.median_ms
            first_ms = first_ms or reference_ms
            speed = reference_ms / first_ms
        for index, result in zip(group, measured, strict=True):
            results.setdefault(index, replace(result, latency=_at_speed(result.latency, speed)))
    return [results[index] for index in range(len(parts))]


def _grouped(workspace: Workspace, parts: Sequence[Part], timing: Timing, *, reference: int) -> list[list[int]]:
    bundle, cap_bytes = workspace.bundle, workspace.memory_cap_bytes
    if cap_bytes is None:
        models = [part.model for part in parts]
        sizes = [
            0
            if index and models[index] == models[index - 1]
            else part.weight_bytes + _arena_bytes(bundle, part, timing)
            for index, part in enumerate(parts)
        ]
        return groups(sizes, limit=GROUP_BYTES, reference=reference)
    prints = [workspace.footprint(part.edges, part.exit, batch=timing.batch) for part in parts]
    return groups_that_stay(prints, cap_bytes, reference=reference)


def _arena_bytes(bundle: Bundle, part: Part, timing: Timing) -> int:
    """Approximate arena size of its session; 0 for a single block, which shares an arena with the others."""
    if len(part.edges) < 2:
        return 0
    largest = max(sum(cut.nbytes for cut in bundle.supernet.ends(edge)) for edge in part.edges)
    return _ARENA_TENSORS * timing.batch * largest


class _Share:
    """Reports progress of one of several groups, whose rounds may end early."""

    def __init__(self, advance: Callable[[float], None], share: float, *, steps: int) -> None:
        self._advance, self._left, self._step = advance, share, share / steps

    def step(self) -> None:
        self._left -= self._step
        self._advance(self._step)

    def finish(self) -> None:
        self._advance(max(self._left, 0.0))


def _at_speed(latency: Latency, speed: float) -> Latency:
    return msgspec.structs.replace(
        latency,
        median_ms=latency.median_ms / speed,
        p95_ms=latency.p95_ms / speed,
        p25_ms=latency.p25_ms / speed,
        p75_ms=latency.p75_ms / speed,
        other_ms=None if latency.other_ms is None else latency.other_ms / speed,
    )


def _measure_group(
    workspace: Workspace, parts: Sequence[Part], timing: Timing, step: Callable[[], None], *, reference: int | None
) -> list[Measured]:
    gc.collect()  # memory freed during loading would falsify the parts' peaks
    loaded: list[_Loaded] = []
    models: dict[Hashable, LoadedStretch] = {}
    inputs: dict[CutPoint, list[Array]] = {}
    try:
        for part in parts:
            cut = _start(workspace, part)
            if cut not in inputs:
                inputs[cut] = golden_inputs(cut, seed=0, batch=timing.batch)
            loaded.append(_Loaded(workspace, part, inputs[cut], timing, models.get(part.model)))
            models[part.model] = loaded[-1].stretch
            step()
        in_pages = any(part.in_pages for part in loaded)  # then it is the only one
        timed = measure_interleaved(
            {str(number): part.run for number, part in enumerate(loaded)},
            rounds=min(timing.rounds, PAGED_ROUNDS) if in_pages else timing.rounds,
            warmup=_PAGED_WARMUP if in_pages else WARMUP,
            patience=timing.patience,
            reference=None if reference is None else str(reference),
            pause_s=timing.pause_s,
            percentile=timing.percentile,
            waiting=[str(number) for number, part in enumerate(parts) if _waits_for_threads(workspace, part)],
            on_round=step,
            clock=timing.clock,
        )
    finally:
        for measured in loaded:
            measured.close()
    return [
        Measured(timed[str(number)], part.peak_bytes, part.in_pages, part.nodes_by_provider)
        for number, part in enumerate(loaded)
    ]


def _waits_for_threads(workspace: Workspace, part: Part) -> bool:
    homes = [Home.parse(edge.home) for edge in part.edges if edge.home]
    at_first = len(homes) < len(part.edges) or part.exit is not None
    several = any(home.threads > 1 or not home.on_processor for home in homes)
    return several or (at_first and workspace.runtime.waits_for_threads)


def _start(workspace: Workspace, part: Part) -> CutPoint:
    """The cut point at which a part begins, in its path's input size."""
    supernet = workspace.supernet
    if part.edges:
        position = supernet.block(part.edges[0].block).start
    else:
        assert part.exit is not None
        position = supernet.exit(part.exit.exit).position
    return supernet.cut_points_at(part.input_size)[position]


class _Loaded:
    """A part with its inputs, loaded and run for the first time. ``stretch``: an already loaded session for it."""

    def __init__(
        self, workspace: Workspace, part: Part, inputs: list[Array], timing: Timing, stretch: LoadedStretch | None
    ) -> None:
        self._inputs = inputs
        self.in_pages = False
        self.stretch, self.peak_bytes = peak_during(lambda: self._first(stretch or self._load(workspace, part, timing)))

    def _load(self, workspace: Workspace, part: Part, timing: Timing) -> LoadedStretch:
        bundle, runtime = workspace.bundle, workspace.runtime
        alone = len(part.edges) < 2
        if workspace.memory_cap_bytes is None:  # single blocks share an arena; whole subnets have their own to measure
            stretch = bundle.stretch(part.edges, part.exit, any_size=not part.own_size)
            return (runtime.taking_turns() if alone else runtime).load(stretch)
        if workspace.fits(part.edges, part.exit, batch=timing.batch):
            return runtime.load(stretch_from_disk(bundle, part.edges, part.exit, any_size=not part.own_size))
        self.in_pages = True
        return workspace.load_stretch(part.edges, part.exit, batch=timing.batch)

    @property
    def nodes_by_provider(self) -> Mapping[str, int]:
        return getattr(self.stretch, "nodes_by_provider", {})

    def _first(self, stretch: LoadedStretch) -> LoadedStretch:
        for _ in range(FIRST_RUNS):
            stretch.run(self._inputs)
        return stretch

    def run(self) -> list[Array]:
        return self.stretch.run(self._inputs)

    def close(self) -> None:
        self.stretch.close()
