"""Search: seconds and subnets until within 0.2 points of the best known accuracy; gaps to the optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.search.runs import Right, SearchRun, observe
from benchmarks.support.bundles import adapted_bundle
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.data.preprocessing import prepare
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.profile import profile
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.search import PrefixTreeEvaluator, make_strategy
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import Edge, Subnet
from pathweave.bench import BenchOptions, BenchOutcome, Target

TARGETS = {"time_vs_adaptivenet": Target(maximum=0.2), "time_vs_best_rival": Target(maximum=1.0)}
BUDGET_RATIO = 0.6  # of the full model's latency
NEAR = 0.002  # of the best known accuracy
SEEDS, QUICK_SEEDS = range(5), range(2)
# seconds a run: adaptivenet's is the longest, so that all count with it that do not get there; long enough that most of
# ours and some of its do
LIMITS_S = {"adaptivenet": 200.0, "evolution": 64.0, "annealing": 8.0, "random": 8.0, "pathweave": 48.0}
QUICK_LIMIT_S = 1.0
SETTINGS: dict[str, dict[str, int]] = {  # small populations for short times; none stops before its time is up
    "adaptivenet": {"generations": 1000, "patience": 1000, "population": 16},
    "evolution": {"generations": 1000, "population": 16, "tournament": 5},
    "annealing": {"steps": 60},
    "random": {"generations": 1000},
    "pathweave": {"generations": 1000, "patience": 1000},
}
EXACT_SUBNETS, EXACT_EVALUATIONS = 200, 24  # enumerated at most; evaluations that a strategy gets there
BATCH, CACHE_BYTES, THREADS = 64, 256 * MB, 1
QUICK_SAMPLES = 128


def run(options: BenchOptions) -> BenchOutcome:
    """Searches on test.zip#search take turns, each with an evaluator of its own that has reuse on.

    Loading sessions is not timed: all runs use the same ones. Best known is the best that anyone found within the
    budget. A run that does not get there counts with the longest limit of all and with all its subnets. On ResNet-20,
    where all subnets can be enumerated, strategies get the work of so many full evaluations instead of time.
    """
    limits_s = dict.fromkeys(LIMITS_S, QUICK_LIMIT_S) if options.quick else LIMITS_S
    bench = _Bench.prepared(adapted_bundle(options), options)
    runs = bench.searched(limits_s, QUICK_SEEDS if options.quick else SEEDS, options)
    known = max(one.best for one in runs)
    rows = [_row(name, runs, known, max(limits_s.values())) for name in limits_s]
    small = _Bench.prepared(adapted_bundle(replace(options, quick=True)), options)
    gaps = small.gaps(QUICK_SEEDS if options.quick else SEEDS)
    by_name = {str(row["strategy"]): row for row in rows}
    reports = bench.on_report([one for one in runs if one.seed == 0], options)
    figures = {
        "time_vs_adaptivenet": _ratio(by_name, "seconds", "adaptivenet"),
        "time_vs_best_rival": max(_ratio(by_name, "seconds", name) for name in by_name if name != "pathweave"),
        "evaluations_vs_evolution": _ratio(by_name, "subnets", "evolution"),
        "best_known_accuracy": 100 * known,
        **{f"gap_to_exact_points_{name}": gap for name, gap in gaps.items()},
    }
    table = [
        {**row, "report_accuracy_seed_0": reports[name], "gap_to_exact_points": gaps[name]}
        for name, row in by_name.items()
    ]
    return BenchOutcome(
        figures, table, data="cifar10/test.zip#search; last answers of seed 0 on #report, looked at once"
    )


def _row(name: str, runs: Sequence[SearchRun], known: float, longest_s: float) -> dict[str, object]:
    own = [one for one in runs if one.strategy == name]
    hits = [one.first(known - NEAR) for one in own]
    seconds = [hit.seconds if hit else longest_s for hit in hits]
    return {
        "strategy": name,
        "reached": sum(hit is not None for hit in hits),
        "seeds": len(own),
        "seconds": median(seconds),
        "seconds_least": min(seconds),
        "seconds_most": max(seconds),
        "subnets": median([hit.subnets if hit else one.subnets for hit, one in zip(hits, own, strict=True)]),
        "limit_s": median([one.seconds for one in own]),
        "best_accuracy": 100 * median([one.best for one in own]),
        "best_accuracy_least": 100 * min(one.best for one in own),
        "best_accuracy_most": 100 * max(one.best for one in own),
        "subnets_in_all": median([one.subnets for one in own]),
    }


def _ratio(rows: Mapping[str, Mapping[str, object]], figure: str, other: str) -> float:
    ours, theirs = (float(str(rows[name][figure])) for name in ("pathweave", other))
    return ours / theirs


@dataclass
class _Bench:
    """A profiled bundle, the samples to search on and sessions that all runs share."""

    bundle: Bundle
    runtime: OnnxRuntime
    cost_model: CostModel
    inputs: Array
    labels: npt.NDArray[np.int64]
    sessions: dict[Edge, _Kept]

    @classmethod
    def prepared(cls, folder: Path, options: BenchOptions) -> _Bench:
        """Profiles, and loads all sessions."""
        bundle, runtime = Bundle.open(folder), OnnxRuntime(threads=THREADS)
        inputs, labels = _part(bundle, "search", options)
        cost_model = profile(Workspace(bundle, runtime), progress=options.progress).cost_model()
        sessions = {edge: _Kept(runtime.load(bundle.stretch((edge,)))) for edge in bundle.supernet.edges}
        return cls(bundle, runtime, cost_model, inputs, labels, sessions)

    @property
    def budget(self) -> Budget:
        return Budget(latency_ms=BUDGET_RATIO * self.cost_model.latency_ms(self.bundle.supernet.original))

    def searched(self, limits_s: Mapping[str, float], seeds: Sequence[int], options: BenchOptions) -> list[SearchRun]:
        """Every strategy with every seed, in an order that rotates."""
        names, runs = list(limits_s), []
        with options.progress.task("search", len(seeds) * sum(limits_s.values())) as task:
            for seed in seeds:
                for name in [*names[seed % len(names) :], *names[: seed % len(names)]]:
                    task.note(f"{name}, seed {seed}")
                    evaluator = self._evaluator(self.inputs, self.labels)
                    strategy = make_strategy(name, **SETTINGS[name])
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
        evaluator = self._evaluator(self.inputs, self.labels)
        subnets = list(enumerate_subnets(supernet, limit=EXACT_SUBNETS))
        evaluator.order_by_margin()
        rows = dict(zip(subnets, evaluator.correct(subnets, slice(None)), strict=True))
        samples = range(evaluator.sample_count)
        apart = np.stack([evaluator.distances(subnets, slice(k, k + 1)) for k in samples], axis=1)
        distances = dict(zip(subnets, apart, strict=True))
        known = _Known(rows, distances, evaluator.full_model_correct())
        evaluator.close()
        best = max(known.rows[s].mean() for s in subnets if budget.fits(self.cost_model.cost(s)))
        gaps = {}
        for name in LIMITS_S:
            runs = [
                observe(
                    name,
                    make_strategy(name, **SETTINGS[name]),
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

    def on_report(self, runs: Sequence[SearchRun], options: BenchOptions) -> dict[str, float]:
        """Accuracy in percent of each run's chosen subnet on test.zip#report."""
        inputs, labels = _part(self.bundle, "report", options)
        evaluator = self._evaluator(inputs, labels)
        answers = {one.strategy: one.result.best.subnet for one in runs if one.result.best is not None}
        accuracies = evaluator.accuracies(list(answers.values()))
        evaluator.close()
        return {name: 100 * accuracy for name, accuracy in zip(answers, accuracies, strict=True)}

    def _evaluator(self, inputs: Array, labels: npt.NDArray[np.int64]) -> PrefixTreeEvaluator:
        return PrefixTreeEvaluator(
            self.bundle.supernet,
            lambda edges: self.sessions[edges[0]],
            inputs,
            labels,
            self.cost_model,
            batch=BATCH,
            cache_bytes=CACHE_BYTES,
        )


def _part(bundle: Bundle, part: str, options: BenchOptions) -> tuple[Array, npt.NDArray[np.int64]]:
    """Prepared images and labels of a part of the test images, in random order."""
    found = load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#{part}", progress=options.progress)
    found = found.relabelled(bundle.manifest.task.class_names)
    order = SplitMix64(0).shuffled(range(len(found)))[: QUICK_SAMPLES if options.quick else len(found)]
    shape = bundle.supernet.cut_points[0].tensors[0].shape
    inputs = prepare(found.images[order], bundle.manifest.preprocessing, input_shape=(shape[0], shape[1], shape[2]))
    return inputs, found.labels[order]


class _Kept:
    """A session that outlives the evaluators that use it."""

    def __init__(self, session: LoadedStretch) -> None:
        self._session = session

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        return self._session.run(inputs)

    def close(self) -> None:
        """Nothing to do: other evaluators still use the session."""


@dataclass(frozen=True)
class _Known:
    """An evaluator over a table of all results."""

    rows: Mapping[Subnet, Right]
    distance: Mapping[Subnet, npt.NDArray[np.float64]]  # of each sample
    full: Right

    @property
    def sample_count(self) -> int:
        return len(next(iter(self.rows.values())))

    @property
    def batch(self) -> int:
        return BATCH

    def accuracies(self, subnets: Sequence[Subnet], **_: object) -> list[float]:
        return [float(row.mean()) for row in self.correct(subnets, slice(None))]

    def order_by_margin(self, **_: object) -> None:
        """Nothing to do: the table is ordered."""

    def correct(self, subnets: Sequence[Subnet], samples: slice, **_: object) -> Right:
        rows = [self.rows[subnet][samples] for subnet in subnets]
        return np.stack(rows) if rows else np.zeros((0, len(range(self.sample_count)[samples])), dtype=np.bool_)

    def full_model_correct(self) -> Right:
        return self.full

    def distances(self, subnets: Sequence[Subnet], samples: slice) -> npt.NDArray[np.float64]:
        return np.array([self.distance[subnet][samples].mean() for subnet in subnets])
