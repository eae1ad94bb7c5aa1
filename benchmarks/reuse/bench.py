"""Feature reuse: evaluation time of five generations of a search with reuse over that without, same results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.reuse.watches import Audit, EdgeTimes, watched
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import adapted_bundle
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.data.preprocessing import prepare
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.profile import profile
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.search import Candidate, Evaluator, PrefixTreeEvaluator, SearchProblem, make_strategy
from device_sdk.search.evaluation.prefix_tree import build_tree, evaluation_cost
from device_sdk.search.port import never_stop
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

TARGETS = {
    "time_ratio_200": Target(maximum=0.40),
    "identical": Target(minimum=1, maximum=1),
    "cap_exceeded": Target(minimum=0, maximum=0),
}
POPULATIONS, QUICK_POPULATIONS = (50, 100, 200), (4, 8)
GENERATIONS = 5
BUDGET_SHARE = 0.6  # of the full model's predicted latency
BATCH = 32
CACHE_BYTES = 256 * MB
TIMED_EVERY = 8  # one batch in so many is timed; other ones every generation
QUICK_SAMPLES = 40
AUDITED_CAPS = (0, 64 * MB, 256 * MB)
AUDITED_POPULATION, AUDITED_GENERATIONS, AUDITED_SAMPLES = 16, 3, 256
SEED = 1
_UNLIMITED = 10**15  # bytes


def run(options: BenchOptions) -> BenchOutcome:
    """AdaptiveNet's search on test.zip#search: NearbyInit, then NearbyMutate four times, at 0.6 of the full latency.

    Timed is the evaluation of its groups, planning and upkeep of the cache included, sessions loaded beforehand. The
    cache lives through all generations and all samples; a batch that is timed is evaluated with reuse and without, in
    alternating order, and a ratio is the sum of the ones over that of the others. Without reuse, every subnet goes
    through all its edges, each in a session of its own: the same segmentation. ``floor``: the share of that time which
    is left if no prefix ever runs twice, however large the cache.
    """
    bench = _Bench.prepared(adapted_bundle(options), options)
    compared = [bench.compare(population) for population in bench.populations]
    audited = [bench.audit(cap_bytes) for cap_bytes in AUDITED_CAPS]
    figures = {f"time_ratio_{one.population}": one.time_ratio for one in compared}
    figures |= {f"floor_{one.population}": one.floor(bench.bundle.supernet) for one in compared}
    same = all(one.identical for one in compared) and len({one.answers for one in audited}) == 1
    figures["identical"] = float(same)
    figures["cap_exceeded"] = float(max(max(0, one.peak_bytes - one.cap_bytes) for one in audited))
    rows = [row for one in compared for row in one.rows(bench.bundle.supernet)] + [one.row() for one in audited]
    return BenchOutcome(figures, rows, data=f"cifar10/test.zip#search, {len(bench.labels)} images")


@dataclass(frozen=True)
class _Bench:
    """Shared setup of all parts of the benchmark."""

    bundle: Bundle
    sessions: dict[Edge, LoadedStretch]
    costs: CostModel
    inputs: Array
    labels: Array
    quick: bool
    progress: Progress

    @classmethod
    def prepared(cls, folder: Path, options: BenchOptions) -> _Bench:
        bundle, runtime = Bundle.open(folder), OnnxRuntime(threads=1)
        data = load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#search", progress=options.progress)
        data = data.relabelled(bundle.manifest.task.class_names)
        channels, height, width = bundle.supernet.cut_points[0].tensors[0].shape
        inputs = prepare(data.images, bundle.manifest.preprocessing.of_images(), input_shape=(channels, height, width))
        count = QUICK_SAMPLES if options.quick else len(inputs)
        return cls(
            bundle,
            {edge: runtime.load(bundle.stretch((edge,))) for edge in bundle.supernet.edges},
            profile(Workspace(bundle, runtime), progress=options.progress).cost_model(),
            inputs[:count],
            data.labels[:count],
            options.quick,
            options.progress,
        )

    @property
    def populations(self) -> tuple[int, ...]:
        return QUICK_POPULATIONS if self.quick else POPULATIONS

    def evaluator(
        self, load: Callable[[Edge], LoadedStretch], *, samples: int | None = None, **settings: object
    ) -> PrefixTreeEvaluator:
        return PrefixTreeEvaluator(
            self.bundle.supernet,
            lambda edges: load(edges[0]),
            self.inputs[:samples],
            self.labels[:samples],
            self.costs,
            batch=BATCH,
            **settings,  # type: ignore[arg-type]
        )

    def compare(self, population: int) -> _Compared:
        """Search, and evaluate each group of the search in both ways."""
        times = EdgeTimes()
        evaluator = _Compared(
            population,
            reusing=self.evaluator(self.sessions.__getitem__, cache_bytes=CACHE_BYTES),
            plain=self.evaluator(lambda edge: watched(self.sessions[edge], times.of(edge)), reuse=False),
            times=times,
            timed_every=1 if self.quick else TIMED_EVERY,
        )
        self._search(evaluator, population, GENERATIONS)
        return evaluator

    def audit(self, cap_bytes: int) -> _Audited:
        """A short search under a cap, with an independent audit of the live arrays."""
        audit = Audit()
        samples = QUICK_SAMPLES if self.quick else AUDITED_SAMPLES
        evaluator = self.evaluator(
            lambda edge: watched(self.sessions[edge], audit), samples=samples, cache_bytes=cap_bytes
        )
        answers = self._search(evaluator, AUDITED_POPULATION, AUDITED_GENERATIONS)
        runs = evaluator.edge_runs / evaluator.edge_runs_without_reuse
        return _Audited(cap_bytes, audit.peak_bytes(), evaluator.peak_cached_bytes, runs, answers)

    def _search(self, evaluator: Evaluator, population: int, generations: int) -> tuple[Candidate, ...]:
        """Run AdaptiveNet's search with this evaluator; returns all evaluated candidates."""
        strategy = make_strategy("adaptivenet", generations=generations, population=population, patience=generations)
        full_ms = self.costs.latency_ms(self.bundle.supernet.original)
        found = strategy.search(
            SearchProblem(
                supernet=self.bundle.supernet,
                cost_model=self.costs,
                budget=Budget(latency_ms=BUDGET_SHARE * full_ms),
                evaluator=evaluator,
                random=SplitMix64(SEED),
                clock=time.monotonic,
                progress=self.progress,
            )
        )
        return found.pool


@dataclass
class _Group:
    """A group that the search evaluated, and the seconds of each timed batch."""

    subnets: list[Subnet]
    reusing_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)


@dataclass
class _Compared:
    """The search's evaluator: evaluates with reuse, and some batches without it as well."""

    population: int
    reusing: PrefixTreeEvaluator
    plain: PrefixTreeEvaluator
    times: EdgeTimes
    timed_every: int
    groups: list[_Group] = field(default_factory=list)
    identical: bool = True

    @property
    def sample_count(self) -> int:
        return self.reusing.sample_count

    @property
    def batch(self) -> int:
        return self.reusing.batch

    def accuracies(self, subnets: Sequence[Subnet], *, should_stop: Callable[[], bool] = never_stop) -> list[float]:
        return self.scores(subnets, slice(None), should_stop=should_stop).mean(axis=1).tolist()

    def order_by_margin(self, *, should_stop: Callable[[], bool] = never_stop) -> None:
        for evaluator in (self.reusing, self.plain):
            evaluator.order_by_margin(should_stop=should_stop)

    def scores(
        self, subnets: Sequence[Subnet], samples: slice, *, should_stop: Callable[[], bool] = never_stop
    ) -> Array:
        group = _Group(list(subnets))
        self.groups.append(group)
        for number, first in enumerate(range(0, self.sample_count, BATCH)):
            batch = slice(first, min(first + BATCH, self.sample_count))
            if (number + len(self.groups)) % self.timed_every:
                self.reusing.scores(subnets, batch, should_stop=should_stop)
            else:
                self._compare(group, batch, reusing_first=len(group.plain_s) % 2 == 0)
        return self.reusing.scores(subnets, samples)

    def margins(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        return self.reusing.margins(subnets, samples)

    def full_model_margins(self) -> npt.NDArray[np.float64]:
        return self.reusing.full_model_margins()

    def margin_scale(self) -> float:
        return self.reusing.margin_scale()

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        return self.reusing.distances(subnets, samples)

    def _compare(self, group: _Group, batch: slice, *, reusing_first: bool) -> None:
        competitors = [(self.reusing, group.reusing_s), (self.plain, group.plain_s)]
        answers = []
        for evaluator, seconds in competitors if reusing_first else competitors[::-1]:
            started_s = time.perf_counter()
            answers.append(evaluator.scores(group.subnets, batch))
            seconds.append(time.perf_counter() - started_s)
        self.identical = self.identical and np.array_equal(answers[0], answers[1])

    @property
    def time_ratio(self) -> float:
        reusing_s, plain_s = ([s for group in self.groups for s in getattr(group, n)] for n in ("reusing_s", "plain_s"))
        return sum(reusing_s) / sum(plain_s)

    def floor(self, supernet: Supernet) -> float:
        return self._share([subnet for group in self.groups for subnet in group.subnets], supernet)

    def _share(self, subnets: Sequence[Subnet], supernet: Supernet) -> float:
        """Share of the time alone, at the edges' measured mean times, that is left if no prefix runs twice."""
        ms = self.times.mean_ms
        tree = build_tree(supernet, subnets, edge_latency_ms=ms, batch=BATCH, cache_bytes=_UNLIMITED)
        return 1 - evaluation_cost(tree, ms).share_saved

    def rows(self, supernet: Supernet) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for generation, group in enumerate(self.groups):
            ratios = np.array(group.reusing_s) / np.array(group.plain_s)
            rows.append(
                {
                    "what": f"population {self.population}, group {generation}",
                    "subnets": len(group.subnets),
                    "time_ratio": sum(group.reusing_s) / sum(group.plain_s) if group.plain_s else None,
                    "time_ratio_spread": [float(ratios.min()), float(ratios.max())] if len(ratios) else None,
                    "reusing_s": sum(group.reusing_s),
                    "plain_s": sum(group.plain_s),
                    "floor_within_group": self._share(group.subnets, supernet),
                }
            )
        runs = self.reusing.edge_runs / self.reusing.edge_runs_without_reuse
        peak = self.reusing.peak_cached_bytes
        rows.append({"what": f"population {self.population}, all", "edge_runs_ratio": runs, "peak_cached_bytes": peak})
        return rows


@dataclass(frozen=True)
class _Audited:
    """The result of a cap: peak live bytes by the audit and by the cache's own count."""

    cap_bytes: int
    peak_bytes: int
    peak_cached_bytes: int
    edge_runs_ratio: float
    answers: tuple[Candidate, ...]

    def row(self) -> dict[str, object]:
        return {
            "what": f"audit, cap {self.cap_bytes // MB} MB",
            "peak_bytes": self.peak_bytes,
            "peak_cached_bytes": self.peak_cached_bytes,
            "edge_runs_ratio": self.edge_runs_ratio,
        }
