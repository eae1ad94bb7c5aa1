"""Adapting to a device: search on private data, confirm by measuring, judge on data that the search did not see."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import split_positions
from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.errors import InfeasibleBudgetError, InputError, UsageError
from device_sdk.execution.class_prior import corrected
from device_sdk.execution.paging import PagedEdges, each_edge
from device_sdk.execution.plan_segments import PlanSegment
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.class_mix import find_prior
from device_sdk.policies.confirmation import EQUAL_LATENCY, Confirmation, Measure, paced_measure
from device_sdk.policies.planning.exits_in_search import ExitsFound, find_exits
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.search import find_subnets, make_strategy
from device_sdk.search.evaluation.evaluator import Load, PrefixTreeEvaluator
from device_sdk.search.feasibility import fastest_within, smallest_subnet
from device_sdk.search.ladder import rungs_near
from device_sdk.search.port import Candidate, SearchProblem, SearchResult
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.plan import Plan, Prior, Subnet
from device_sdk.supernet.supernet import Supernet

SEARCH_S = 20.0
_PREPARED = 5  # images that preparing is timed on


@dataclass(frozen=True)
class Adaptation:
    """Result of an adaptation. Latencies are medians at batch 1; accuracies are shares of right answers.

    ``accuracy_holdout`` and ``full_accuracy_holdout`` (the full model's) are on the ``holdout_samples`` that the search
    did not see; None without any. ``accuracy_interval``: 95 % of the accuracy on new samples like these.
    ``measured_ms``: latency in the application when nothing else runs, at the budget's percentile, without preparing
    the image, which takes ``prepare_ms``; ``median_ms``: the same at the median; ``measured_interval_ms``: 95 %
    interval of ``measured_ms``; ``within_budget_probability``: that it keeps the budget. ``full_measured_ms``: of the
    full model in the same circumstances; under a memory cap without room for both, alone, and in pages if need be.
    ``slowdown``: of the device during the measurement, over quiet.
    ``budget``: the one that was kept, in milliseconds; under a memory cap with its memory limit (``within_cap``).
    With exits in the plan, ``predicted_ms`` and ``measured_ms`` are means, and both accuracies of the device's answers
    are on samples that the search did not see: those that chose the exits, and those that judged them.
    """

    plan: Plan
    budget: Budget
    predicted_ms: float
    measured_ms: float
    median_ms: float
    measured_interval_ms: tuple[float, float]
    within_budget_probability: float
    full_measured_ms: float
    slowdown: float
    prepare_ms: float
    predicted_peak_bytes: int
    accuracy_search: float
    accuracy_interval: tuple[float, float]
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
    """Settings for an adaptation. The defaults suit a few hundred private samples.

    ``time_limit_s``: for the search, after which the best so far is taken; None to let it end by itself.
    ``use_prior``: estimate the mix of classes of the samples, and correct all answers by it if that is certain to help.
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
    use_prior: bool = True
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
    measure: Measure | None = None,
) -> Adaptation:
    """Find the most accurate subnet within ``budget`` on ``inputs`` with ``labels`` [count].

    ``inputs``: the samples, or an array [count, *input] of prepared ones.

    1. without labels, the full model's answers stand in; 2. hold some samples back; 3. measure the full model and the
    rungs of the ladder near the budget, so that the search aims at what really fits; 4. search on the other samples,
    the ladder first; 5. confirm the best candidate by measuring (``confirmation``); 6. judge it on the held-back ones.

    Under a memory cap, subnets that would run in pages are left out if there is any that would not (``within_cap``):
    ``profile``, made under the same cap, does not include paging. Where all would, the candidates are measured
    in pages. ``measure``: how latencies are taken, by default on this device.

    Raises:
        InfeasibleBudgetError: no subnet fits; names the nearest.
        BudgetError: the search was stopped before it had anything, or the cap is too small for the largest block.
        InputError: there are no inputs, some are not finite, or labels do not match them or the classes.
    """
    started = time.monotonic()
    _check_inputs(inputs)
    inputs = as_inputs(inputs)
    estimate = settings.use_prior and labels is not None
    prior: Prior | None = None
    if labels is None:
        labels, prior = stand_in_labels(workspace, inputs, batch=settings.batch, use_prior=settings.use_prior)
    _check_labels(labels, inputs, workspace.bundle)
    kept, held = search_positions(labels, settings)
    cost_model = profile.cost_model()
    budget = within_cap(workspace.supernet, cost_model, budget, workspace.memory_cap_bytes)
    evaluate = partial(make_evaluator, workspace, cost_model, settings)
    confirmation = _confirmation(workspace, profile, budget, measure or paced_measure(workspace, budget))
    evaluator = evaluate(inputs.subset(kept), labels[kept])
    if estimate:
        prior = find_prior(*evaluator.full_model_logits())
        evaluator.release()  # rungs are loaded next, alone under the cap
    evaluator.use_prior(prior)
    problem = SearchProblem(
        supernet=workspace.supernet,
        cost_model=cost_model,
        budget=confirmation.budget,
        evaluator=evaluator,
        random=SplitMix64(settings.seed),
        clock=time.monotonic,
        progress=progress,
        time_limit_s=settings.time_limit_s,
        cancelled=settings.cancelled,
    )
    try:
        found = with_prior(_search(problem, settings.strategy, confirmation), prior)
        evaluator.release()  # whole subnets are loaded now, alone under the cap
        confirmed = confirmation.best(found.pool)
    finally:
        evaluator.close()
    chosen, budget = confirmed.candidate, confirmation.budget
    judged = _judge(evaluate, inputs.subset(held), labels[held], [chosen.subnet, workspace.supernet.original], prior)
    adaptation = Adaptation(
        plan=chosen.plan,
        budget=budget,
        predicted_ms=chosen.cost.latency_ms,
        measured_ms=confirmed.measured_ms,
        median_ms=confirmed.median_ms,
        measured_interval_ms=confirmed.interval_ms,
        within_budget_probability=confirmed.probability,
        full_measured_ms=confirmed.full_ms,
        slowdown=confirmed.slowdown,
        prepare_ms=_prepare_ms(inputs, chosen.subnet),
        predicted_peak_bytes=chosen.cost.peak_bytes,
        accuracy_search=chosen.accuracy,
        accuracy_interval=_interval(chosen.expected_accuracy, len(inputs)),
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
    room = replace(workspace, prior=prior)
    exits = find_exits(room, profile, found.pool, budget, inputs, labels, held, most_ms=most_ms, progress=progress)
    return adaptation if exits is None else _with_exits(adaptation, exits, cost_model, started)


def with_prior(found: SearchResult, prior: Prior | None) -> SearchResult:
    """The same with ``prior`` in the plans of all candidates, which were judged under it."""
    pool = tuple(replace(one, plan=one.plan.with_prior(prior)) for one in found.pool)
    best = next((one for one in pool if found.best is not None and one.subnet == found.best.subnet), None)
    return replace(found, pool=pool, best=best)


def _confirmation(workspace: Workspace, profile: Profile, budget: Budget, measure: Measure) -> Confirmation:
    return Confirmation(
        workspace.supernet.original,
        profile.cost_model(),
        budget,
        measure,
        original_ms=profile.original_ms,
        overhead_ms=profile.call_overhead_ms,
    )


def _search(problem: SearchProblem, strategy: str, confirmation: Confirmation) -> SearchResult:
    """Search within the budget in terms of predictions.

    Where nothing is predicted to fit, the fastest subnet is measured; if it may keep the budget, its neighbourhood is
    searched.

    Raises:
        InfeasibleBudgetError: nothing keeps the budget.
    """
    supernet, costs = problem.supernet, problem.cost_model
    aimed = confirmation.aim(rungs_near(supernet, costs, problem.budget))
    try:
        return find_subnets(make_strategy(strategy), replace(problem, budget=aimed))
    except InfeasibleBudgetError:
        fastest = fastest_within(supernet, costs, memory_mb=aimed.memory_mb)
        if fastest is None:
            raise
        confirmation.require_chance(fastest, costs.peak_bytes(fastest))
        nearest = msgspec.structs.replace(aimed, latency_ms=costs.latency_ms(fastest) * EQUAL_LATENCY)
        return find_subnets(make_strategy(strategy), replace(problem, budget=nearest))


def _with_exits(adaptation: Adaptation, found: ExitsFound, costs: CostModel, started: float) -> Adaptation:
    """The adaptation whose plan is the one with exits; its subnet is in the pool, so that it can be watched."""
    prior = adaptation.plan.class_prior
    subnet, cost, pool = found.plan.subnet, found.cost, adaptation.pool
    assert cost.accuracy is not None
    assert cost.latency_ms is not None
    if all(one.subnet != subnet for one in pool):
        pool = (*pool, Candidate(Plan(subnet).with_prior(prior), costs.cost(subnet), cost.accuracy))
    return replace(
        adaptation,
        plan=found.plan.with_prior(prior),
        predicted_ms=cost.latency_ms,
        measured_ms=found.mean_ms,
        predicted_peak_bytes=cost.peak_bytes,
        accuracy_search=cost.accuracy,
        accuracy_holdout=None if found.held_out is None else found.held_out.accuracy,
        holdout_samples=found.judged,
        seconds=time.monotonic() - started,
        pool=pool,
    )


def _prepare_ms(inputs: Inputs, subnet: Subnet) -> float:
    """Median time of preparing one image for ``subnet``; near 0 for prepared tensors."""
    taken_s = []
    for position in range(min(_PREPARED, len(inputs))):
        image, started = inputs.subset(np.array([position])), time.perf_counter()
        image.take(np.array([0]), subnet.input_size)
        taken_s.append(time.perf_counter() - started)
    return float(np.median(taken_s)) * 1e3


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
    capped = msgspec.structs.replace(budget, memory_mb=limit_mb)
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


def stand_in_labels(
    workspace: Workspace, inputs: Inputs | Array, *, batch: int, use_prior: bool
) -> tuple[npt.NDArray[np.int64], Prior | None]:
    """The full model's answers to ``inputs``, in place of labels [count], and the prior that corrected them, if any."""
    logits = _full_model_logits(workspace, inputs, batch=batch)
    prior = find_prior(logits, None) if use_prior else None
    return corrected(logits, prior).argmax(axis=-1), prior


def _full_model_logits(workspace: Workspace, inputs: Inputs | Array, *, batch: int) -> Array:
    """[count, classes]; under a memory cap in pages if it has to, in batches that fit."""
    whole = workspace.supernet.original.edges
    batch = workspace.largest_batch([PlanSegment(whole, None)], wanted=batch)
    loaded = workspace.load_stretch(whole, batch=batch)
    try:
        positions = np.arange(len(inputs))
        batches = (positions[at : at + batch] for at in range(0, len(inputs), batch))
        outputs = [loaded.run([as_inputs(inputs).take(some)])[-1] for some in batches]
    finally:
        loaded.close()
    return np.concatenate(outputs)


def _judge(
    evaluate: Callable[[Inputs, npt.NDArray[np.int64]], PrefixTreeEvaluator],
    inputs: Inputs,
    labels: npt.NDArray[np.int64],
    subnets: Sequence[Subnet],
    prior: Prior | None,
) -> Sequence[float | None]:
    """Accuracies on held-back samples."""
    if not len(inputs):
        return [None] * len(subnets)
    evaluator = evaluate(inputs, labels)
    evaluator.use_prior(prior)
    try:
        return evaluator.accuracies(subnets)
    finally:
        evaluator.close()


def _interval(accuracy: float, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of an accuracy on ``samples``."""
    z2 = 1.96**2
    centre = (accuracy + z2 / (2 * samples)) / (1 + z2 / samples)
    half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / samples + z2 / (4 * samples**2)) / (1 + z2 / samples)
    return max(0.0, centre - half), min(1.0, centre + half)
