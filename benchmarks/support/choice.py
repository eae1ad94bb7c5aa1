"""Chooses subnets within a budget on one part of the data, and confirms them by measuring."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.support.peers import Samples
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.confirmation import EQUAL_LATENCY
from device_sdk.profiling.profile import Profile, profile
from device_sdk.profiling.timing import Latency, measure_interleaved
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import LoadedStretch
from device_sdk.search import PrefixTreeEvaluator, find_subnets, make_strategy, with_expected_accuracies
from device_sdk.search.port import Candidate, SearchProblem, by_expected_accuracy
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.paths import k_cheapest
from device_sdk.supernet.plan import Edge, Plan, Subnet

_BATCH, _CACHE_BYTES = 64, 256 * MB
_WARMUP = 10
_SESSIONS = 3  # in which a budget is measured: one that was quick by chance makes a budget that nothing meets
_SAMPLES_AT_ONCE = 64
_SEARCHES, _LESS = 4, 0.98  # how often at most, each time within this share of the time before or less


@dataclass(frozen=True)
class Measured:
    """Interleaved latencies at batch 1 on one thread: the full model, subnets as deployed, and optionally a rival."""

    full: Latency
    subnets: tuple[Latency, ...]
    rival: Latency | None

    def ratio(self, one: Latency) -> float:
        """Of the full model's latency."""
        return one.median_ms / self.full.median_ms


@dataclass(frozen=True)
class Chosen:
    """The best subnet that is fast enough, its latency, and the measurements taken with it."""

    candidate: Candidate
    latency: Latency
    beside: Measured

    @property
    def ratio(self) -> float:
        """Its latency over the full model's."""
        return self.beside.ratio(self.latency)


class Chooser:
    """Searches one bundle on the samples of #search for several budgets; evaluations are memoised."""

    def __init__(self, folder: Path, search: Samples, progress: Progress, *, seed: int = 0) -> None:
        self._bundle = Bundle.open(folder)
        self._runtime = OnnxRuntime(threads=1)
        self._progress = progress
        self._seed = seed
        self.profile: Profile = profile(Workspace(self._bundle, self._runtime), progress=progress)
        self._costs: CostModel = self.profile.cost_model()
        self._evaluator = PrefixTreeEvaluator(
            self._bundle.supernet,
            lambda edges: self._runtime.load(self._bundle.stretch(edges)),
            search.inputs,
            search.labels,
            self._costs,
            batch=_BATCH,
            cache_bytes=_CACHE_BYTES,
        )

    def cheapest_ratio(self, *, rounds: int) -> float:
        """Of the full model's latency, what the subnet that should be the quickest takes, as measured."""
        sessions = [self.measured(self._cheapest(1), None, rounds=rounds) for _ in range(_SESSIONS)]
        return median(one.ratio(one.subnets[0]) for one in sessions)

    def rival_ratio(self, rival: bytes, *, rounds: int) -> float:
        """Of the full model's latency, what ``rival``, an ONNX model, takes, as measured."""
        sessions = [self.measured([], rival, rounds=rounds) for _ in range(_SESSIONS)]
        return median(one.ratio(one.rival) for one in sessions if one.rival is not None)

    def original(self, rendition: str) -> Subnet:
        """The path of the original blocks in one of their renditions."""
        return Subnet(tuple(Edge(block, rendition) for block in self._bundle.supernet.original.block_ids))

    def _within(
        self, ratio: float, seen: dict[Subnet, Candidate], *, count: int, time_limit_s: float | None
    ) -> list[Candidate]:
        """Up to ``count`` subnets that should take at most ``ratio`` of the full model's time, the best first.

        Where none should, the quickest: what they take is measured afterwards, and predictions are off by some percent.
        ``seen``: candidates of earlier searches, which count as well; those of this one are put there.
        """
        budget = Budget(latency_ms=EQUAL_LATENCY * ratio * self.profile.original_ms)
        problem = SearchProblem(
            supernet=self._bundle.supernet,
            cost_model=self._costs,
            budget=budget,
            evaluator=self._evaluator,
            random=SplitMix64(self._seed),
            clock=time.monotonic,
            progress=self._progress,
            time_limit_s=time_limit_s,
        )
        try:
            found = find_subnets(make_strategy("pathweave"), problem)
        except InfeasibleBudgetError:
            return self._quickest(count)
        seen |= {one.subnet: one for one in found.pool}
        pool = with_expected_accuracies(replace(found, pool=tuple(seen.values())), problem).pool
        return sorted((one for one in pool if budget.fits(one.cost)), key=by_expected_accuracy)[:count]

    def _quickest(self, count: int) -> list[Candidate]:
        subnets = self._cheapest(count)
        accuracies = self._evaluator.accuracies(subnets)
        costs = map(self._costs.cost, subnets)
        found = [Candidate(Plan(s), cost, share) for s, cost, share in zip(subnets, costs, accuracies, strict=True)]
        return sorted(found, key=by_expected_accuracy)

    def _cheapest(self, count: int) -> list[Subnet]:
        costs = self._costs.edge_costs
        paths = k_cheapest(self._bundle.supernet, lambda edge: costs[edge].latency_ms, k=count)
        return [subnet for _, subnet in paths]

    def measured(self, subnets: Sequence[Subnet], rival: bytes | None, *, rounds: int) -> Measured:
        """Measure subnets beside the full model and ``rival``, an ONNX model."""
        sessions = {str(number): self._load(subnet) for number, subnet in enumerate(subnets)}
        sessions["full"] = self._load(self._bundle.supernet.original)
        if rival is not None:
            sessions["rival"] = self._runtime.load_model(rival)
        sample = np.zeros((1, *self._bundle.supernet.cut_points[0].tensors[0].shape), dtype=np.float32)
        calls = {name: partial(session.run, [sample]) for name, session in sessions.items()}
        try:
            found = measure_interleaved(calls, rounds=rounds, warmup=_WARMUP)
        finally:
            for session in sessions.values():
                session.close()
        return Measured(found["full"], tuple(found[str(n)] for n in range(len(subnets))), found.get("rival"))

    def best(
        self, ratio: float, rival: bytes | None, *, count: int, rounds: int, time_limit_s: float | None = None
    ) -> Chosen | None:
        """The best subnet that is measured to take no longer than ``rival``, or without one than ``ratio`` of the full.

        2 % count as equal. Where the most promising of ``count`` candidates turns out too slow, others are searched for
        within as much less, as a device does when it adapts: one further down is taken only if those are not better.
        Nothing is measured twice until it happens to be quick enough.
        """
        expected, slow, seen = ratio, set[Subnet](), dict[Subnet, Candidate]()
        quick: dict[Subnet, Chosen] = {}
        for _ in range(_SEARCHES):
            within = self._within(expected, seen, count=count + len(slow), time_limit_s=time_limit_s)
            candidates = [one for one in within if one.subnet not in slow][:count]
            less = _LESS
            if candidates and candidates[0].subnet not in quick:
                unknown = [one for one in candidates if one.subnet not in quick]
                beside = self.measured([one.subnet for one in unknown], rival, rounds=rounds)
                allowed_ms = ratio * beside.full.median_ms if beside.rival is None else beside.rival.median_ms
                for candidate, latency in zip(unknown, beside.subnets, strict=True):
                    if latency.median_ms <= EQUAL_LATENCY * allowed_ms:
                        quick[candidate.subnet] = Chosen(candidate, latency, beside)
                    else:
                        slow.add(candidate.subnet)
                less = min(_LESS, allowed_ms / beside.subnets[0].median_ms)
            if candidates and candidates[0].subnet in quick:
                return quick[candidates[0].subnet]
            expected *= less
        return min(quick.values(), key=lambda one: by_expected_accuracy(one.candidate), default=None)

    def right(self, subnet: Subnet, samples: Samples) -> npt.NDArray[np.bool_]:
        """The subnet's correctness on each sample: [count]."""
        session = self._load(subnet)
        try:
            parts = np.array_split(samples.inputs, -(-len(samples.inputs) // _SAMPLES_AT_ONCE))
            return np.concatenate([session.run([part])[0] for part in parts]).argmax(axis=1) == samples.labels
        finally:
            session.close()

    def _load(self, subnet: Subnet) -> LoadedStretch:
        return self._runtime.load(self._bundle.stretch(subnet.edges))

    def close(self) -> None:
        """Close the sessions."""
        self._evaluator.close()
