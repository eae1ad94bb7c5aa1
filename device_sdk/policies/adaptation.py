"""Adapting to a device: search on private data, confirm by measuring, judge on data that the search did not see."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.cost import Budget, CostModel
from device_sdk.data.datasets import split_positions
from device_sdk.errors import BudgetError, InfeasibleBudgetError, InputError, UsageError
from device_sdk.graph import Plan, Subnet
from device_sdk.profiling.profile import Profile, measure_subnets
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array, Runtime
from device_sdk.search import make_strategy, with_expectations
from device_sdk.search.evaluation import PrefixTreeEvaluator
from device_sdk.search.port import Candidate, SearchProblem, SearchResult, best_within

_CONFIRM_ROUNDS = 80
_CONFIRM_ATTEMPTS = 8
EQUAL_LATENCY = 1.02  # latencies within 2 % are equal: two sessions of one model differ by that


@dataclass(frozen=True)
class Adaptation:
    """What an adaptation found. Latencies are medians at batch 1; accuracies are shares of right answers.

    ``accuracy_holdout`` and ``full_accuracy_holdout`` (the full model's) are on the ``holdout_samples`` that the search
    did not see; None without any. ``full_measured_ms`` was measured in turns with ``measured_ms``.
    """

    plan: Plan
    budget: Budget
    predicted_ms: float
    measured_ms: float
    full_measured_ms: float
    predicted_peak_bytes: int
    accuracy_search: float
    accuracy_holdout: float | None
    full_accuracy_holdout: float | None
    search_samples: int
    holdout_samples: int
    subnets_evaluated: int
    seconds: float
    stopped: str
    pool: tuple[Candidate, ...]

    @property
    def subnet(self) -> Subnet:
        """The chosen subnet."""
        return self.plan.subnet

    @property
    def measured_ratio(self) -> float:
        """Measured latency over the full model's, same run."""
        return self.measured_ms / self.full_measured_ms


@dataclass(frozen=True, kw_only=True)
class AdaptationSettings:
    """How to adapt. The defaults suit a few hundred private samples.

    Raises:
        UsageError: the batch is not above zero.
    """

    strategy: str = "pathweave"
    holdout_share: float = 0.3
    seed: int = 0
    batch: int = 64
    cache_bytes: int = 64_000_000
    time_limit_s: float | None = None
    cancelled: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; it must be at least 1")


def adapt(
    bundle: Bundle,
    runtime: Runtime,
    profile: Profile,
    inputs: Array,
    labels: npt.NDArray[np.int64] | None,
    budget: Budget,
    *,
    settings: AdaptationSettings,
    progress: Progress,
) -> Adaptation:
    """Find the most accurate subnet within ``budget`` on ``inputs`` [count, *input] with ``labels`` [count].

    1. without labels, the full model's answers stand in; 2. hold some samples back; 3. search on the others, and say
    what is to be expected of the candidates elsewhere; 4. confirm the best of them by measuring; 5. judge the chosen
    one on what was held back.

    Raises:
        InfeasibleBudgetError: no subnet fits; names the nearest.
        BudgetError: the search was stopped before it had anything.
        InputError: there are no inputs, some are not finite, or labels do not match them or the classes.
    """
    started = time.monotonic()
    _check_inputs(inputs)
    if labels is None:
        labels = stand_in_labels(bundle, runtime, inputs, batch=settings.batch)
    _check_labels(labels, inputs, bundle)
    kept, held = search_positions(labels, settings)
    cost_model = profile.cost_model()
    evaluator = _evaluator(bundle, runtime, inputs[kept], labels[kept], cost_model, settings)
    problem = SearchProblem(
        supernet=bundle.supernet,
        cost_model=cost_model,
        budget=budget,
        evaluator=evaluator,
        random=SplitMix64(settings.seed),
        clock=time.monotonic,
        progress=progress,
        time_limit_s=settings.time_limit_s,
        cancelled=settings.cancelled,
    )
    try:
        found = with_expectations(make_strategy(settings.strategy).search(problem), problem)
    finally:
        evaluator.close()
    confirmed = _confirm(bundle, runtime, found, budget)
    chosen = confirmed.candidate
    judged = _judge(bundle, runtime, inputs[held], labels[held], cost_model, chosen.subnet, settings)
    return Adaptation(
        plan=Plan(chosen.subnet),
        budget=budget,
        predicted_ms=chosen.cost.latency_ms,
        measured_ms=confirmed.measured_ms,
        full_measured_ms=confirmed.full_measured_ms,
        predicted_peak_bytes=chosen.cost.peak_bytes,
        accuracy_search=chosen.accuracy,
        accuracy_holdout=judged[0],
        full_accuracy_holdout=judged[1],
        search_samples=len(kept),
        holdout_samples=len(held),
        subnets_evaluated=found.subnets_evaluated,
        seconds=time.monotonic() - started,
        stopped=found.stopped,
        pool=found.pool,
    )


def search_positions(
    labels: npt.NDArray[np.int64], settings: AdaptationSettings
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions in ``labels`` [count] to search on, in random order (a race starts with the first), and to hold back.

    Raises:
        UsageError: the share to hold back does not lie between 0 and 1.
    """
    kept, held = split_positions(labels, holdout_share=settings.holdout_share, seed=settings.seed)
    return np.array(SplitMix64(settings.seed).shuffled(kept.tolist()), dtype=np.int64), held


def _check_inputs(inputs: Array) -> None:
    if not len(inputs):
        raise InputError("there are no samples to adapt on")
    broken = [at for at, sample in enumerate(inputs) if not np.isfinite(sample).all()]
    if broken:
        raise InputError(
            f"{len(broken)} of {len(inputs)} samples have values that are no numbers, number {broken[0]} first",
            hint="leave them out",
        )


def _check_labels(labels: npt.NDArray[np.int64], inputs: Array, bundle: Bundle) -> None:
    if labels.shape != (len(inputs),):
        raise InputError(f"there are {len(inputs)} samples and labels of shape {labels.shape}")
    classes = len(bundle.manifest.task.class_names)
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"labels must lie between 0 and {classes - 1}, got {labels.min()} to {labels.max()}")


def _evaluator(
    bundle: Bundle,
    runtime: Runtime,
    inputs: Array,
    labels: npt.NDArray[np.int64],
    cost_model: CostModel,
    settings: AdaptationSettings,
) -> PrefixTreeEvaluator:
    return PrefixTreeEvaluator(
        bundle.supernet,
        lambda edges: runtime.load(bundle.stretch(edges)),
        inputs,
        labels,
        cost_model,
        batch=settings.batch,
        cache_bytes=settings.cache_bytes,
    )


def stand_in_labels(bundle: Bundle, runtime: Runtime, inputs: Array, *, batch: int) -> npt.NDArray[np.int64]:
    """The full model's answers to ``inputs`` [count, *input], in place of labels: [count]."""
    loaded = runtime.load(bundle.stretch(bundle.supernet.original.edges))
    try:
        outputs = [loaded.run([inputs[at : at + batch]])[-1] for at in range(0, len(inputs), batch)]
    finally:
        loaded.close()
    return np.concatenate(outputs).argmax(axis=-1)


@dataclass(frozen=True)
class _Confirmed:
    candidate: Candidate
    measured_ms: float
    full_measured_ms: float


def _confirm(bundle: Bundle, runtime: Runtime, found: SearchResult, budget: Budget) -> _Confirmed:
    """Measure the best candidate in turns with the full model; while one is too slow, expect more of the others.

    The prediction is right to a few percent. A candidate that measures above the budget tells by how much, and the
    next one has to fit a budget that is tighter by this ratio: no limit is relaxed beyond what cannot be told apart.
    """
    wanted = budget
    rejected: set[Subnet] = set()
    fastest: _Confirmed | None = None
    for _ in range(_CONFIRM_ATTEMPTS):
        candidate = best_within((c for c in found.pool if c.subnet not in rejected), wanted)
        if candidate is None:
            break
        subnets = [bundle.supernet.original, candidate.subnet]
        full, own = measure_subnets(bundle, runtime, subnets, rounds=_CONFIRM_ROUNDS)
        confirmed = _Confirmed(candidate, own.median_ms, full.median_ms)
        if budget.fits_latency(own.median_ms / EQUAL_LATENCY):
            return confirmed
        rejected.add(candidate.subnet)
        fastest = min((fastest, confirmed), key=lambda c: c.measured_ms) if fastest else confirmed
        assert budget.latency_ms is not None
        slower = own.median_ms / candidate.cost.latency_ms
        wanted = Budget(latency_ms=budget.latency_ms / max(slower, 1.0), memory_mb=budget.memory_mb)
    raise _nothing_confirmed(budget, fastest)


def _nothing_confirmed(budget: Budget, fastest: _Confirmed | None) -> BudgetError:
    if fastest is None:
        return BudgetError("the search was stopped before it had looked at a subnet within the budget")
    return InfeasibleBudgetError(
        f"no subnet ran in {budget.latency_ms:.3g} ms; the fastest candidate took {fastest.measured_ms:.3g} ms",
        nearest=fastest.candidate.subnet.block_ids,
        nearest_latency_ms=fastest.measured_ms,
        nearest_peak_bytes=fastest.candidate.cost.peak_bytes,
        hint=f"allow at least {fastest.measured_ms * 1.05:.3g} ms, or quieten the device",
    )


def _judge(
    bundle: Bundle,
    runtime: Runtime,
    inputs: Array,
    labels: npt.NDArray[np.int64],
    cost_model: CostModel,
    subnet: Subnet,
    settings: AdaptationSettings,
) -> Sequence[float | None]:
    """Accuracy of the chosen subnet and of the full model on held-back samples."""
    if not len(inputs):
        return None, None
    evaluator = _evaluator(bundle, runtime, inputs, labels, cost_model, settings)
    try:
        return evaluator.accuracies([subnet, bundle.supernet.original])
    finally:
        evaluator.close()
