"""Timing stretches of a bundle in turns, without holding more of them in memory at once than a device may have."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.golden import golden_inputs
from device_sdk.execution.paging import stretch_from_disk
from device_sdk.execution.paging_plan import Footprint, all_stay
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.memory import peak_during
from device_sdk.profiling.timing import Clock, Latency, Patience, measure_interleaved
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import Edge, ExitChoice

WARMUP = 5
GROUP_BYTES = 128 * MB  # that are loaded at once: weights, and what whole subnets compute with
_ARENA_TENSORS = 4  # what a session of its own computes with, in sizes of its largest block's inputs and outputs
PAGED_ROUNDS, _PAGED_WARMUP = 10, 1  # of what loads its pages again in every call: 100 times as long as a call without
FIRST_RUNS = 2  # after these a runtime has taken the memory that it works with


@dataclass(frozen=True)
class Part:
    """Something to be timed: consecutive edges, or an exit's branch alone. ``weight_bytes``: of its blobs.

    ``input_size``: of the path that it is part of; empty for the model's own.
    """

    edges: tuple[Edge, ...]
    exit: ExitChoice | None
    weight_bytes: int
    input_size: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        edges: Sequence[Edge] = (),
        exit_: ExitChoice | None = None,
        input_size: tuple[int, ...] = (),
    ) -> Part:
        """The part of ``bundle``, its blobs weighed (each once), or BlobError. ``edges`` bring their input size."""
        names = dict.fromkeys(bundle.blob_names(edges, exit_))
        size = edges[0].input_size if edges else input_size
        return cls(tuple(edges), exit_, sum(map(bundle.blob_size, names)), size)

    @property
    def model(self) -> Hashable:
        """Equal for parts that one session runs: the same block or branch alone, at whatever input size.

        Several edges are timed as they are deployed: in a session for their input size.
        """
        return (self.edges if len(self.edges) > 1 else tuple(edge.at(()) for edge in self.edges)), self.exit


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How parts are timed: at most ``rounds``, fewer with ``patience``, on batches of ``batch``."""

    rounds: int
    batch: int = 1
    patience: Patience | None = None
    clock: Clock = time.perf_counter_ns


@dataclass(frozen=True)
class Measured:
    """A part's latency, and by how much the process grew while it was loaded and ran first; None where unknown.

    ``in_pages``: it takes more than the memory cap, and its pages were loaded again and again. ``nodes_by_provider``:
    how many nodes of it each provider of the runtime runs; empty where the runtime does not tell.
    """

    latency: Latency
    peak_bytes: int | None
    in_pages: bool = False
    nodes_by_provider: Mapping[str, int] = field(default_factory=dict)


def groups(sizes: Sequence[int], *, limit: int, reference: int) -> list[list[int]]:
    """Groups of indices whose sizes make at most ``limit``; ``reference`` and at least one other are in each."""
    found: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if index == reference:
            continue
        if not found or size > room:
            found.append([reference])
            room = limit - sizes[reference]
        found[-1].append(index)
        room -= size
    return [sorted(group) for group in found] or [[reference]]


def groups_that_stay(prints: Sequence[Footprint], cap_bytes: int, *, reference: int) -> list[list[int]]:
    """Groups of indices that can all be loaded at once under the cap; ``reference`` in each where it fits too.

    What takes more than the cap by itself is a group of its own.
    """

    def stays(group: Sequence[int]) -> bool:
        return all_stay([prints[index] for index in sorted(group)], cap_bytes)

    found: list[list[int]] = []
    for index in range(len(prints)):
        if index == reference:
            continue
        if found and stays([*found[-1], index]):
            found[-1].append(index)
        else:
            found.append([reference, index] if stays([reference, index]) else [index])
    if not any(reference in group for group in found):
        found.insert(0, [reference])
    return [sorted(group) for group in found]


def measure_parts(
    workspace: Workspace,
    parts: Sequence[Part],
    timing: Timing,
    *,
    reference: int = 0,
    advance: Callable[[float], None] = lambda share: None,
) -> list[Measured]:
    """Load each part, note its memory, and time all of them in turns on golden inputs [batch, *shape].

    Where they do not fit into memory at once, they are timed in groups: ``parts[reference]`` is in every group, and
    what it takes there, over what it took in the first, is the speed of the device meanwhile, which is taken out.
    Under a memory cap a group without room for the reference is timed as it is, and what does not fit in one piece runs
    in pages, as deployed. ``advance`` is told which share of everything is done now.

    Raises:
        BlobError, RuntimeFailedError: a part does not load or run.
        BudgetError: the memory cap is too small for the largest block; says the least that works.
        MeasurementError: the clock cannot be right.
    """
    found: dict[int, Measured] = {}
    first_ms: float | None = None
    grouped = _grouped(workspace, parts, timing, reference=reference)
    for group in grouped:
        share = _Share(advance, 1 / len(grouped), steps=len(group) + WARMUP + timing.rounds)
        timed = replace(timing, patience=timing.patience and timing.patience.shared_by(len(grouped)))
        measured = _measure_group(workspace, [parts[index] for index in group], timed, share.step)
        share.finish()
        speed = 1.0
        if reference in group:
            reference_ms = measured[group.index(reference)].latency.median_ms
            first_ms = first_ms or reference_ms
            speed = reference_ms / first_ms
        for index, one in zip(group, measured, strict=True):
            found.setdefault(index, replace(one, latency=_at_speed(one.latency, speed)))
    return [found[index] for index in range(len(parts))]


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
    """Roughly what its session computes with; 0 for a block alone, which shares an arena with all others."""
    if len(part.edges) < 2:
        return 0
    largest = max(sum(cut.nbytes for cut in bundle.supernet.ends(edge)) for edge in part.edges)
    return _ARENA_TENSORS * timing.batch * largest


class _Share:
    """Tells progress of one of several groups, whose rounds may end early."""

    def __init__(self, advance: Callable[[float], None], share: float, *, steps: int) -> None:
        self._advance, self._left, self._step = advance, share, share / steps

    def step(self) -> None:
        self._left -= self._step
        self._advance(self._step)

    def finish(self) -> None:
        self._advance(max(self._left, 0.0))


def _at_speed(latency: Latency, speed: float) -> Latency:
    return Latency(
        median_ms=latency.median_ms / speed,
        p95_ms=latency.p95_ms / speed,
        p25_ms=latency.p25_ms / speed,
        p75_ms=latency.p75_ms / speed,
        runs=latency.runs,
    )


def _measure_group(
    workspace: Workspace, parts: Sequence[Part], timing: Timing, step: Callable[[], None]
) -> list[Measured]:
    gc.collect()  # what is freed while parts are loaded would count as theirs
    loaded: list[_Loaded] = []
    models: dict[Hashable, LoadedStretch] = {}
    try:
        for part in parts:
            loaded.append(_Loaded(workspace, part, timing, models.get(part.model)))
            models[part.model] = loaded[-1].stretch
            step()
        in_pages = any(one.in_pages for one in loaded)  # then it is the only one
        timed = measure_interleaved(
            {str(number): one.run for number, one in enumerate(loaded)},
            rounds=min(timing.rounds, PAGED_ROUNDS) if in_pages else timing.rounds,
            warmup=_PAGED_WARMUP if in_pages else WARMUP,
            patience=timing.patience,
            on_round=step,
            clock=timing.clock,
        )
    finally:
        for one in loaded:
            one.close()
    return [
        Measured(timed[str(number)], part.peak_bytes, part.in_pages, part.nodes_by_provider)
        for number, part in enumerate(loaded)
    ]


class _Loaded:
    """A part with its inputs, loaded and run for the first time. ``stretch``: what runs it, if that is loaded."""

    def __init__(self, workspace: Workspace, part: Part, timing: Timing, stretch: LoadedStretch | None) -> None:
        supernet = workspace.supernet
        if part.edges:
            start = supernet.block(part.edges[0].block).start
        else:
            assert part.exit is not None
            start = supernet.exit(part.exit.exit).position
        self._inputs = golden_inputs(supernet.cut_points_at(part.input_size)[start], seed=0, batch=timing.batch)
        self.in_pages = False
        self.stretch, self.peak_bytes = peak_during(lambda: self._first(stretch or self._load(workspace, part, timing)))

    def _load(self, workspace: Workspace, part: Part, timing: Timing) -> LoadedStretch:
        bundle, runtime = workspace.bundle, workspace.runtime
        alone = len(part.edges) < 2
        if workspace.memory_cap_bytes is None:  # blocks alone are many; what whole subnets take by themselves is noted
            stretch = bundle.stretch(part.edges, part.exit, any_size=alone)
            return (runtime.taking_turns() if alone else runtime).load(stretch)
        if workspace.fits(part.edges, part.exit, batch=timing.batch):
            return runtime.load(stretch_from_disk(bundle, part.edges, part.exit, any_size=alone))
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
