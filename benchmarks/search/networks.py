"""Networks that strategies search: a profiled bundle, its samples, and sessions that all runs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.real_size.photographs import load_photographs
from benchmarks.runner.run import BenchOptions
from benchmarks.search.runs import Right, SearchTrace, observe
from benchmarks.search.strategies import ALL
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.data.inputs import Inputs, PreparedInputs
from device_sdk.data.preprocessing import prepare
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.profile import profile
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch, StopSignal
from device_sdk.search import PrefixTreeEvaluator
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.tasks.margins import margin_scale

BUDGET_RATIO = 0.6  # of the full model's latency
SETTINGS: dict[str, dict[str, int]] = {  # small populations for short times; none stops before its time is up
    "adaptivenet": {"generations": 1000, "patience": 1000, "population": 16},
    "evolution": {"generations": 1000, "population": 16, "tournament": 5},
    "annealing": {"steps": 120},
    "random": {"generations": 1000},
    "pathweave": {"generations": 1000, "patience": 1000},
}
EXACT_SUBNETS, EXACT_EVALUATIONS = 400, 24  # enumerated at most; evaluations that a strategy gets there
BATCH, REAL_SIZE_BATCH, CACHE_BYTES, THREADS = 64, 8, 256 * MB, 1
QUICK_SAMPLES = 128


@dataclass(frozen=True)
class Part:
    """Samples and their labels [count]."""

    inputs: Inputs
    labels: npt.NDArray[np.int64]


@dataclass
class Network:
    """A profiled bundle, the samples to search on and on which to report, and sessions that all runs share."""

    name: str
    bundle: Bundle
    cost_model: CostModel
    search: Part
    report: Part
    sessions: dict[Edge, _Kept]

    @classmethod
    def prepared(cls, name: str, folder: Path, search: Part, report: Part, progress: Progress) -> Network:
        """Profiles, and loads all sessions: one per block and rendition runs at every input size."""
        bundle = Bundle.open(folder)
        workspace = Workspace(bundle, OnnxRuntime(threads=THREADS)).taking_turns()
        cost_model = profile(workspace, progress=progress).cost_model()
        edges = dict.fromkeys(edge.at(()) for edge in bundle.supernet.edges)
        sessions = {edge: _Kept(workspace.load_at_any_size((edge,))) for edge in edges}
        return cls(name, bundle, cost_model, search, report, sessions)

    @property
    def budget(self) -> Budget:
        return Budget(latency_ms=BUDGET_RATIO * self.cost_model.latency_ms(self.bundle.supernet.original))

    @property
    def _batch(self) -> int:
        return BATCH if len(self.bundle.supernet.sizes) == 1 else REAL_SIZE_BATCH

    def searched(self, limits_s: Mapping[str, float], seeds: Sequence[int], progress: Progress) -> list[SearchTrace]:
        """Every strategy with every seed, in an order that rotates."""
        names, runs = list(limits_s), []
        with progress.task(f"search, {self.name}", len(seeds) * sum(limits_s.values())) as task:
            for seed in seeds:
                for name in [*names[seed % len(names) :], *names[: seed % len(names)]]:
                    task.note(f"{name}, seed {seed}")
                    evaluator = self._evaluator(self.search)
                    strategy = ALL[name](**SETTINGS[name])
                    runs.append(
                        observe(
                            name,
                            strategy,
                            seed=seed,
                            evaluator=evaluator,
                            supernet=self.bundle.supernet,
                            cost_model=self.cost_model,
                            budget=self.budget,
                            time_limit_s=limits_s[name],
                        )
                    )
                    evaluator.close()
                    task.advance(limits_s[name])
        return runs

    def gaps(self, seeds: Sequence[int]) -> dict[str, float]:
        """Median points between each strategy's best and the optimum, which enumeration finds."""
        supernet, budget = self.bundle.supernet, self.budget
        evaluator = self._evaluator(self.search)
        subnets = list(enumerate_subnets(supernet, limit=EXACT_SUBNETS))
        evaluator.order_by_margin()
        evaluator.scores(subnets, slice(None))
        rows = dict(zip(subnets, evaluator.margins(subnets, slice(None)), strict=True))
        samples = range(evaluator.sample_count)
        apart = np.stack([evaluator.distances(subnets, slice(k, k + 1)) for k in samples], axis=1)
        distances = dict(zip(subnets, apart, strict=True))
        known = _Known(rows, distances, evaluator.full_model_margins())
        evaluator.close()
        best = max((known.rows[s] > 0).mean() for s in subnets if budget.fits(self.cost_model.cost(s)))
        gaps = {}
        for name in SETTINGS:
            runs = [
                observe(
                    name,
                    ALL[name](**SETTINGS[name]),
                    seed=seed,
                    evaluator=known,
                    supernet=supernet,
                    cost_model=self.cost_model,
                    budget=budget,
                    sample_limit=EXACT_EVALUATIONS * known.sample_count,
                )
                for seed in seeds
            ]
            gaps[name] = 100 * float(median([best - one.best for one in runs]))
        return gaps

    def on_report(self, runs: Sequence[SearchTrace]) -> dict[str, float]:
        """Accuracy in percent of each run's chosen subnet on #report."""
        evaluator = self._evaluator(self.report)
        answers = {one.strategy: one.result.best.subnet for one in runs if one.result.best is not None}
        accuracies = evaluator.accuracies(list(answers.values()))
        evaluator.close()
        return {name: 100 * accuracy for name, accuracy in zip(answers, accuracies, strict=True)}

    def close(self) -> None:
        """Close the sessions."""
        for session in self.sessions.values():
            session.end()

    def _evaluator(self, part: Part) -> PrefixTreeEvaluator:
        return PrefixTreeEvaluator(
            self.bundle.supernet,
            lambda edges: self.sessions[edges[0].at(())],
            part.inputs,
            part.labels,
            self.cost_model,
            batch=self._batch,
            cache_bytes=CACHE_BYTES,
        )


def cifar_part(folder: Path, part: str, options: BenchOptions) -> Part:
    """A part of CIFAR-10's test images, in random order."""
    manifest = Bundle.open(folder).manifest
    found = load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#{part}", progress=options.progress)
    found = found.relabelled(manifest.task.class_names)
    order = SplitMix64(0).shuffled(range(len(found)))[: QUICK_SAMPLES if options.quick else len(found)]
    shape = manifest.supernet().cut_points[0].tensors[0].shape
    inputs = prepare(
        found.images[order], manifest.preprocessing.of_images(), input_shape=(shape[0], shape[1], shape[2])
    )
    return Part(PreparedInputs(inputs), found.labels[order])


def photographs_part(folder: Path, part: str, options: BenchOptions, *, count: int) -> Part:
    """``count`` photographs of ``part``, spread evenly over the classes, in random order."""
    found = load_photographs(options.data_folder, (part,), limit=count)
    order = np.array(SplitMix64(0).shuffled(range(len(found.labels))))
    inputs = found.inputs(Bundle.open(folder).manifest.preprocessing.of_images()).subset(order)
    return Part(inputs, found.labels[order])


class _Kept:
    """A session that outlives the evaluators that use it."""

    def __init__(self, session: LoadedStretch) -> None:
        self._session = session

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        return self._session.run(inputs)

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        return self._session.run_until(inputs, stop)

    def close(self) -> None:
        """Nothing to do: other evaluators still use the session."""

    def end(self) -> None:
        """Close the session."""
        self._session.close()


@dataclass(frozen=True)
class _Known:
    """An evaluator over a table of all results."""

    rows: Mapping[Subnet, npt.NDArray[np.float64]]  # margin of each sample
    distance: Mapping[Subnet, npt.NDArray[np.float64]]  # of each sample
    full: npt.NDArray[np.float64]  # margin of each sample

    @property
    def sample_count(self) -> int:
        return len(next(iter(self.rows.values())))

    @property
    def batch(self) -> int:
        return BATCH

    def accuracies(self, subnets: Sequence[Subnet], **_: object) -> list[float]:
        return [float(row.mean()) for row in self.scores(subnets, slice(None))]

    def order_by_margin(self, **_: object) -> None:
        """Nothing to do: the table is ordered."""

    def scores(self, subnets: Sequence[Subnet], samples: slice, **_: object) -> Right:
        return (self.margins(subnets, samples) > 0).astype(np.float32)

    def margins(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        rows = [self.rows[subnet][samples] for subnet in subnets]
        return np.stack(rows) if rows else np.zeros((0, len(range(self.sample_count)[samples])))

    def full_model_margins(self) -> npt.NDArray[np.float64]:
        return self.full

    def margin_scale(self) -> float:
        return margin_scale(self.full, self.sample_count)

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        return np.array([self.distance[subnet][samples].mean() for subnet in subnets])
