"""Profiling: what every block costs on this device, calibrated so that whole subnets are predicted well.

AdaptiveNet §5.1 sums block latencies. A composed subnet is faster than that sum, since the runtime optimises across
block boundaries, so a line through a few measured whole subnets turns sums into predictions.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np

from device_sdk.bundles.bundle import Bundle
from device_sdk.cost import CostModel, EdgeCost
from device_sdk.execution.self_test import golden_inputs
from device_sdk.graph import Edge, ExitChoice, Subnet, Supernet
from device_sdk.paths import k_cheapest, sample_uniformly
from device_sdk.profiling.memory import device_identity, peak_during
from device_sdk.profiling.timing import Clock, Latency, measure_interleaved
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime

_ROUNDS = 60
_WARMUP = 5
_FITTED_SUBNETS = 10


class MeasuredSubnet(msgspec.Struct, frozen=True):
    """A whole subnet that was measured: Σ of its block latencies, and its own latency, at batch 1."""

    subnet: Subnet
    blocks_ms: float
    measured_ms: float


class MeasuredEdge(msgspec.Struct, frozen=True):
    """One edge and what it costs alone."""

    edge: Edge
    cost: EdgeCost


class MeasuredExit(msgspec.Struct, frozen=True):
    """One exit's branch and what it costs alone."""

    exit: str
    rendition: str
    cost: EdgeCost


class Profile(msgspec.Struct, frozen=True):
    """What one bundle costs on one device with one runtime. Valid for equal ``bundle``, ``device`` and ``runtime``."""

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

    def cost_model(self) -> CostModel:
        """Predicts subnets and plans from this profile."""
        costs = {measured.edge: measured.cost for measured in self.edges}
        exits = {(measured.exit, measured.rendition): measured.cost for measured in self.exits}
        return CostModel(costs, scale=self.scale, offset_ms=self.offset_ms, exit_costs=exits)

    def valid_for(self, bundle: Bundle, runtime: Runtime) -> bool:
        """Whether it was measured for just this."""
        return (self.bundle, self.device, self.runtime) == (
            bundle.digest,
            device_identity(),
            runtime.identity,
        )


def profile(
    bundle: Bundle, runtime: Runtime, *, progress: Progress, seed: int = 0, clock: Clock = time.perf_counter_ns
) -> Profile:
    """Measure every edge and every exit alone and a few whole subnets, all at batch 1 on the runtime's threads.

    1. load each of them, noting its memory; 2. time them in turns; 3. time whole subnets in turns: the original, the
    cheapest and random ones; 4. fit scale and offset to them.

    Raises:
        BlobError, RuntimeFailedError: a block does not load or run.
    """
    supernet = bundle.supernet
    gc.collect()  # what is freed while blocks are loaded would count as theirs
    parts: list[Edge | ExitChoice] = [*supernet.edges, *_all_exits(supernet)]
    with progress.task("profile", len(parts) + _FITTED_SUBNETS) as task:
        loaded: list[_LoadedPart] = []
        for part in parts:
            loaded.append(_LoadedPart(bundle, runtime, part))
            task.advance()
        calls = {str(number): item.run for number, item in enumerate(loaded)}
        timed = measure_interleaved(calls, rounds=_ROUNDS, warmup=_WARMUP, clock=clock)
        measured_parts = [
            (part, item.cost(timed[str(number)])) for number, (part, item) in enumerate(zip(parts, loaded, strict=True))
        ]
        for item in loaded:
            item.close()
        costs = {part: cost for part, cost in measured_parts if isinstance(part, Edge)}
        subnets = _subnets_to_fit(supernet, CostModel(costs), seed=seed)
        measured = measure_subnets(bundle, runtime, subnets, rounds=_ROUNDS, clock=clock)
        task.advance(_FITTED_SUBNETS)
    fitted = tuple(
        MeasuredSubnet(subnet, CostModel(costs).latency_ms(subnet), latency.median_ms)
        for subnet, latency in zip(subnets, measured, strict=True)
    )
    scale, offset_ms = fit(fitted)
    return Profile(
        bundle=bundle.digest,
        device=device_identity(),
        runtime=runtime.identity,
        batch=1,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        edges=tuple(MeasuredEdge(edge, cost) for edge, cost in costs.items()),
        scale=scale,
        offset_ms=offset_ms,
        fitted=fitted,
        original_ms=fitted[0].measured_ms,
        exits=tuple(
            MeasuredExit(part.exit, part.rendition, cost)
            for part, cost in measured_parts
            if isinstance(part, ExitChoice)
        ),
    )


def _all_exits(supernet: Supernet) -> list[ExitChoice]:
    return [ExitChoice(one.id, 1.0, rendition.name) for one in supernet.exits for rendition in one.renditions]


def measure_subnets(
    bundle: Bundle,
    runtime: Runtime,
    subnets: Sequence[Subnet],
    *,
    rounds: int,
    clock: Clock = time.perf_counter_ns,
) -> list[Latency]:
    """The latencies of whole subnets as they are deployed, timed in turns at batch 1."""
    inputs = golden_inputs(bundle.supernet.cut_points[0], seed=0, batch=1)
    loaded = [runtime.load(bundle.stretch(subnet.edges)) for subnet in subnets]
    try:
        calls = {str(number): _Call(stretch, inputs) for number, stretch in enumerate(loaded)}
        timed = measure_interleaved(calls, rounds=rounds, warmup=_WARMUP, clock=clock)
    finally:
        for stretch in loaded:
            stretch.close()
    return [timed[str(number)] for number in range(len(subnets))]


def fit(measured: Sequence[MeasuredSubnet]) -> tuple[float, float]:
    """Scale and offset [ms] that predict measured latencies from block sums with the least relative squared error.

    With too little to tell them apart, or a line that makes no sense, the offset is 0 and the scale the median ratio.
    """
    sums = np.array([one.blocks_ms for one in measured])
    latencies = np.array([one.measured_ms for one in measured])
    if np.ptp(sums) > 0.05 * sums.max():
        design = np.stack([sums / latencies, 1 / latencies], axis=1)
        scale, offset_ms = np.linalg.lstsq(design, np.ones(len(sums)), rcond=None)[0]
        if scale > 0 and offset_ms + scale * sums.min() > 0:
            return float(scale), float(offset_ms)
    return float(np.median(latencies / sums)), 0.0


def _subnets_to_fit(supernet: Supernet, costs: CostModel, *, seed: int) -> list[Subnet]:
    """The original first, then the cheapest, then random ones."""
    cheapest = k_cheapest(supernet, costs.edge_latency_ms, k=1)[0][1]
    random = sample_uniformly(supernet, count=3 * _FITTED_SUBNETS, random=SplitMix64(seed))
    return list(dict.fromkeys([supernet.original, cheapest, *random]))[:_FITTED_SUBNETS]


class _Call:
    """A stretch with its inputs, as something to be timed."""

    def __init__(self, stretch: LoadedStretch, inputs: list[Array]) -> None:
        self._stretch = stretch
        self._inputs = inputs

    def __call__(self) -> list[Array]:
        return self._stretch.run(self._inputs)


class _LoadedPart:
    """One edge or one exit's branch, loaded alone, and the memory that it took.

    Small blocks hide in memory that the process already had, so no part of the estimate is below what must be there:
    the weights, and the tensors that go in and come out.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime, part: Edge | ExitChoice) -> None:
        supernet = bundle.supernet
        if isinstance(part, Edge):
            stretch, start = bundle.stretch((part,)), supernet.block(part.block).start
        else:
            stretch, start = bundle.stretch((), part), supernet.exit(part.exit).position
        weights = sum(map(len, stretch.fragments))
        inputs = golden_inputs(supernet.cut_points[start], seed=0, batch=1)
        self._loaded, grown = peak_during(lambda: runtime.load(stretch))
        self.run = _Call(self._loaded, inputs)
        _, working = peak_during(self.run)
        self._resident_bytes = max(grown or 0, weights)
        self._working_bytes = max(working or 0, sum(spec.nbytes for spec in (*stretch.inputs, *stretch.outputs)))

    def cost(self, latency: Latency) -> EdgeCost:
        return EdgeCost(
            latency_ms=latency.median_ms,
            p95_latency_ms=latency.p95_ms,
            resident_bytes=self._resident_bytes,
            working_bytes=self._working_bytes,
        )

    def close(self) -> None:
        self._loaded.close()
