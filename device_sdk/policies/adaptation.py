"""Adapting to a device: search on private data, confirm by measuring, judge on data that the search did not see."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import split_positions
from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.errors import BudgetError, InfeasibleBudgetError, InputError, UsageError
from device_sdk.execution.paging import PagedEdges, each_edge
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.planning.exits_in_search import ExitsFound, find_exits
from device_sdk.profiling.profile import Profile, measure_subnets
from device_sdk.profiling.timing import Patience
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.search import find_subnets, make_strategy
from device_sdk.search.evaluation.evaluator import Load, PrefixTreeEvaluator
from device_sdk.search.feasibility import smallest_subnet
from device_sdk.search.port import Candidate, SearchProblem, SearchResult, best_within
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.plan import Plan, Subnet
from device_sdk.supernet.supernet import Supernet

SEARCH_S = 20.0
_CONFIRM_ROUNDS = 80
_CONFIRM_PATIENCE = Patience(rounds=80, precision=0.01, limit_s=2.5, least=15)
_CONFIRM_ATTEMPTS = 8
_MOST_DRIFT = 1.15  # in either direction, between the profile and the confirmation
EQUAL_LATENCY = 1.02  # latencies within 2 % are equal: two sessions of one model differ by that


@dataclass(frozen=True)
class Adaptation:
    """What an adaptation found. Latencies are medians at batch 1; accuracies are shares of right answers.

    ``accuracy_holdout`` and ``full_accuracy_holdout`` (the full model's) are on the ``holdout_samples`` that the search
    did not see; None without any. ``full_measured_ms`` was measured in turns with ``measured_ms``; under a memory cap
    that has no room for both, alone, and in pages if need be. ``budget`` is the one that was kept: under a memory cap
    that is its memory limit (``within_cap``).
    With exits in the plan, ``predicted_ms`` and ``measured_ms`` are means, and both accuracies of the device's answers
    are on samples that the search did not see: those that chose the exits, and those that judged them.
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

    ``time_limit_s``: for the search, after which the best so far is taken; None to let it end by itself.
    ``use_exits``: let subnets compete with their exits too (``exits_in_search``): the budget then limits the mean.
    ``batch``: samples evaluated together at most; fewer where the tensors between two blocks would take more than
    ``batch_bytes``. ``cache_bytes``: of features that are kept to be used again.

    Raises:
        UsageError: the batch is not above zero.
    """

    strategy: str = "pathweave"
    holdout_share: float = 0.3
    seed: int = 0
    batch: int = 64
    batch_bytes: int = 32_000_000
    cache_bytes: int = 64_000_000
    time_limit_s: float | None = SEARCH_S
    use_exits: bool = False
    cancelled: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; it must be at least 1")


def find_plan(
    workspace: Workspace,
    profile: Profile,
    inputs: Inputs | Array,
    labels: npt.NDArray[np.int64] | None,
    budget: Budget,
    *,
    settings: AdaptationSettings,
    progress: Progress,
) -> Adaptation:
    """Find the most accurate subnet within ``budget`` on ``inputs`` with ``labels`` [count].

    ``inputs``: the samples, or an array [count, *input] of prepared ones.

    1. without labels, the full model's answers stand in; 2. hold some samples back; 3. search on the others, and say
    what is to be expected of the candidates elsewhere; 4. confirm the best of them by measuring; 5. judge the chosen
    one on what was held back.

    Under a memory cap, subnets that would run in pages are left out if there is any that would not (``within_cap``):
    ``profile``, made under the same cap, does not include paging. Where all would, the candidates are measured
    in pages.

    Raises:
        InfeasibleBudgetError: no subnet fits; names the nearest.
        BudgetError: the search was stopped before it had anything, or the cap is too small for the largest block.
        InputError: there are no inputs, some are not finite, or labels do not match them or the classes.
    """
    started = time.monotonic()
    _check_inputs(inputs)
    inputs = as_inputs(inputs)
    if labels is None:
        labels = stand_in_labels(workspace, inputs, batch=settings.batch)
    _check_labels(labels, inputs, workspace.bundle)
    kept, held = search_positions(labels, settings)
    cost_model = profile.cost_model()
    budget = within_cap(workspace.supernet, cost_model, budget, workspace.memory_cap_bytes)
    evaluate = partial(make_evaluator, workspace, cost_model, settings)
    evaluator = evaluate(inputs.subset(kept), labels[kept])
    problem = SearchProblem(
        supernet=workspace.supernet,
        cost_model=cost_model,
        budget=budget,
        evaluator=evaluator,
        random=SplitMix64(settings.seed),
        clock=time.monotonic,
        progress=progress,
        time_limit_s=settings.time_limit_s,
        cancelled=settings.cancelled,
    )

    def confirm(result: SearchResult) -> _Confirmed:
        evaluator.release()  # whole subnets are loaded now, alone under the cap
        return _confirm(workspace, result, budget, profile.original_ms)

    try:
        found, confirmed = _search_and_confirm(problem, settings.strategy, confirm)
    finally:
        evaluator.close()
    chosen = confirmed.candidate
    judged = _judge(evaluate, inputs.subset(held), labels[held], [chosen.subnet, workspace.supernet.original])
    adaptation = Adaptation(
        plan=chosen.plan,
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
    if not settings.use_exits:
        return adaptation
    most_ms = math.inf if budget.latency_ms is None else budget.latency_ms * EQUAL_LATENCY
    exits = find_exits(workspace, profile, found.pool, budget, inputs, labels, held, most_ms=most_ms, progress=progress)
    return adaptation if exits is None else _with_exits(adaptation, exits, cost_model, started)


def _with_exits(adaptation: Adaptation, found: ExitsFound, costs: CostModel, started: float) -> Adaptation:
    """The adaptation whose plan is the one with exits; its subnet is in the pool, so that it can be watched."""
    subnet, cost, pool = found.plan.subnet, found.cost, adaptation.pool
    assert cost.accuracy is not None
    assert cost.latency_ms is not None
    if all(one.subnet != subnet for one in pool):
        pool = (*pool, Candidate(Plan(subnet), costs.cost(subnet), cost.accuracy))
    return replace(
        adaptation,
        plan=found.plan,
        predicted_ms=cost.latency_ms,
        measured_ms=found.mean_ms,
        predicted_peak_bytes=cost.peak_bytes,
        accuracy_search=cost.accuracy,
        accuracy_holdout=None if found.held_out is None else found.held_out.accuracy,
        holdout_samples=found.judged,
        seconds=time.monotonic() - started,
        pool=pool,
    )


def search_positions(
    labels: npt.NDArray[np.int64], settings: AdaptationSettings
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions in ``labels`` [count] to search on, in random order, and to hold back.

    Raises:
        UsageError: the share to hold back does not lie between 0 and 1.
    """
    kept, held = split_positions(labels, holdout_share=settings.holdout_share, seed=settings.seed)
    return np.array(SplitMix64(settings.seed).shuffled(kept.tolist()), dtype=np.int64), held


def _check_inputs(inputs: Inputs | Array) -> None:
    if not len(inputs):
        raise InputError("there are no samples to adapt on")
    if not isinstance(inputs, np.ndarray):
        return
    broken = [at for at, sample in enumerate(inputs) if not np.isfinite(sample).all()]
    if broken:
        raise InputError(
            f"{len(broken)} of {len(inputs)} samples have values that are no numbers, number {broken[0]} first",
            hint="leave them out",
        )


def _check_labels(labels: npt.NDArray[np.int64], inputs: Inputs, bundle: Bundle) -> None:
    if labels.shape != (len(inputs),):
        raise InputError(f"there are {len(inputs)} samples and labels of shape {labels.shape}")
    classes = len(bundle.manifest.task.class_names)
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"labels must lie between 0 and {classes - 1}, got {labels.min()} to {labels.max()}")


def within_cap(supernet: Supernet, cost_model: CostModel, budget: Budget, memory_cap_bytes: int | None) -> Budget:
    """``budget`` with the memory cap as its limit, so that no subnet in pages fits; unless there are only such."""
    if memory_cap_bytes is None:
        return budget
    limit_mb = min(memory_cap_bytes / MB, math.inf if budget.memory_mb is None else budget.memory_mb)
    capped = Budget(latency_ms=budget.latency_ms, memory_mb=limit_mb)
    return capped if capped.fits_memory(cost_model.peak_bytes(smallest_subnet(supernet, cost_model))) else budget


def make_evaluator(
    workspace: Workspace,
    cost_model: CostModel,
    settings: AdaptationSettings,
    inputs: Inputs | Array,
    labels: npt.NDArray[np.int64],
) -> PrefixTreeEvaluator:
    """Evaluates subnets on ``inputs`` with ``labels`` [count].

    Batches are small where features are large (``settings.batch_bytes``). Under a memory cap, edges leave memory for
    others, features get at most half of what the largest edge leaves, and batches are as large as then fits.
    """
    bundle, cap_bytes = workspace.bundle, workspace.memory_cap_bytes
    cache_bytes = workspace.room_for_features(settings.cache_bytes)
    batch = _batch_within(bundle.supernet, settings)
    load: Load = workspace.taking_turns().load_at_any_size
    if cap_bytes is not None:
        room = replace(workspace, memory_cap_bytes=cap_bytes - cache_bytes)
        batch = room.largest_batch(each_edge(bundle), wanted=batch)
        load = PagedEdges(bundle, workspace.runtime, cap_bytes=cap_bytes - cache_bytes, batch=batch)
    return PrefixTreeEvaluator(bundle.supernet, load, inputs, labels, cost_model, batch=batch, cache_bytes=cache_bytes)


def _batch_within(supernet: Supernet, settings: AdaptationSettings) -> int:
    """The settings' batch, or half as many samples again and again until the tensors at a block's ends fit."""
    edges = [edge for edge in supernet.edges if not edge.input_size]
    largest_bytes = max(sum(cut.nbytes for cut in supernet.ends(edge)) for edge in edges)
    batch = settings.batch
    while batch > 1 and batch * largest_bytes > settings.batch_bytes:
        batch //= 2
    return batch


def stand_in_labels(workspace: Workspace, inputs: Inputs | Array, *, batch: int) -> npt.NDArray[np.int64]:
    """The full model's answers to ``inputs``, in place of labels: [count].

    Under a memory cap it runs in pages if it has to, in batches that fit.
    """
    whole = workspace.supernet.original.edges
    batch = workspace.largest_batch([PlanSegment(whole, None)], wanted=batch)
    loaded = workspace.load_stretch(whole, batch=batch)
    try:
        positions = np.arange(len(inputs))
        batches = (positions[at : at + batch] for at in range(0, len(inputs), batch))
        outputs = [loaded.run([as_inputs(inputs).take(some)])[-1] for some in batches]
    finally:
        loaded.close()
    return np.concatenate(outputs).argmax(axis=-1)


@dataclass(frozen=True)
class _Confirmed:
    candidate: Candidate
    measured_ms: float
    full_measured_ms: float


def _search_and_confirm(
    problem: SearchProblem, strategy: str, confirm: Callable[[SearchResult], _Confirmed]
) -> tuple[SearchResult, _Confirmed]:
    """What a search finds, and the best of it that measures within the budget.

    Where nothing does, since all is slower here than predicted, the search runs once more within a budget that is
    tighter by as much.

    Raises:
        InfeasibleBudgetError: nothing measures within the budget.
    """

    def search(wanted: SearchProblem) -> SearchResult:
        return find_subnets(make_strategy(strategy), wanted)

    found = search(problem)
    try:
        return found, confirm(found)
    except InfeasibleBudgetError as error:
        limit_ms = problem.budget.latency_ms
        if limit_ms is None or not error.nearest_latency_ms or error.nearest_latency_ms <= limit_ms:
            raise
        tighter = Budget(limit_ms * limit_ms / error.nearest_latency_ms, problem.budget.memory_mb)
        try:
            found = search(replace(problem, budget=tighter))
        except InfeasibleBudgetError:
            raise error from None
        return found, confirm(found)


def _confirm(workspace: Workspace, found: SearchResult, budget: Budget, original_ms: float) -> _Confirmed:
    """Measure the best candidate in turns with the full model; while one is too slow, expect more of the others.

    Predictions are right to a few percent. A candidate that measures above the budget tightens the predicted budget of
    the next one by the same ratio. The limit itself is relaxed only by ``EQUAL_LATENCY``.
    ``original_ms``: the full model's latency when the profile was measured. By how much it differs now is speed drift
    of the device, which is cancelled within ``_MOST_DRIFT``.
    """
    wanted = budget
    rejected: set[Subnet] = set()
    fastest: _Confirmed | None = None
    for _ in range(_CONFIRM_ATTEMPTS):
        candidate = best_within((c for c in found.pool if c.subnet not in rejected), wanted)
        if candidate is None:
            break
        subnets = [workspace.supernet.original, candidate.subnet]
        full, own = measure_subnets(workspace, subnets, rounds=_CONFIRM_ROUNDS, patience=_CONFIRM_PATIENCE)
        confirmed = _Confirmed(candidate, own.median_ms, full.median_ms)
        drift = min(max(full.median_ms / original_ms, 1 / _MOST_DRIFT), _MOST_DRIFT)
        if budget.fits_latency(own.median_ms / drift / EQUAL_LATENCY):
            return confirmed
        rejected.add(candidate.subnet)
        fastest = min((fastest, confirmed), key=lambda c: c.measured_ms) if fastest else confirmed
        assert budget.latency_ms is not None
        slower = own.median_ms / drift / candidate.cost.latency_ms
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
    evaluate: Callable[[Inputs, npt.NDArray[np.int64]], PrefixTreeEvaluator],
    inputs: Inputs,
    labels: npt.NDArray[np.int64],
    subnets: Sequence[Subnet],
) -> Sequence[float | None]:
    """Accuracies on held-back samples."""
    if not len(inputs):
        return [None] * len(subnets)
    evaluator = evaluate(inputs, labels)
    try:
        return evaluator.accuracies(subnets)
    finally:
        evaluator.close()
