"""Proposing subnets: a search on private data, the ladder first, aimed by measurements at what really fits."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.paging import PagedEdges, each_edge
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.class_mix import find_prior
from device_sdk.policies.confirmation import EQUAL_LATENCY, Confirmation, Measure, paced_measure
from device_sdk.policies.gathering import AdaptationSettings, Samples
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.search import find_subnets, make_strategy
from device_sdk.search.evaluation.evaluator import Load, PrefixTreeEvaluator
from device_sdk.search.feasibility import fastest_within, smallest_subnet
from device_sdk.search.ladder import climb, rungs_near
from device_sdk.search.port import SearchProblem, SearchResult
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.plan import Prior, Subnet
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class SubnetsFound:
    """The pool of a search, judged under ``prior``, and the measurement that confirms what is taken of it."""

    result: SearchResult
    confirmation: Confirmation
    prior: Prior | None


def search_subnets(
    workspace: Workspace,
    profile: Profile,
    samples: Samples,
    budget: Budget,
    *,
    estimate_prior: bool,
    settings: AdaptationSettings,
    progress: Progress,
    least_accuracy: float | None = None,
    measure: Measure | None = None,
) -> SubnetsFound:
    """Search for accurate subnets within ``budget`` on the samples that choose.

    1. measure the full model and the rungs of the ladder near the budget, so that the search aims at what really fits;
    2. estimate the mix of classes; 3. search, the ladder first. Without a latency limit, the search goes for what is
    faster than the fastest rung that has ``least_accuracy``.

    Under a memory cap, subnets that would run in pages are left out if there is any that would not (``within_cap``):
    ``profile``, made under the same cap, does not include paging. ``measure``: how latencies are taken, by default on
    this device.

    Raises:
        InfeasibleBudgetError: no subnet fits; names the nearest.
        BudgetError: the search was stopped before it had anything, or the cap is too small for the largest block.
    """
    costs = profile.cost_model()
    budget = within_cap(workspace.supernet, costs, budget, workspace.memory_cap_bytes)
    confirmation = Confirmation(
        workspace.supernet.original,
        costs,
        budget,
        measure or paced_measure(workspace, budget),
        original_ms=profile.original_ms,
        overhead_ms=profile.call_overhead_ms,
    )
    evaluator = make_evaluator(
        workspace, costs, settings, samples.inputs.subset(samples.kept), samples.labels[samples.kept]
    )
    prior = samples.prior
    if estimate_prior:
        prior = find_prior(*evaluator.full_model_logits())
        evaluator.release()  # rungs are loaded next, alone under the cap
    evaluator.use_prior(prior)
    problem = SearchProblem(
        supernet=workspace.supernet,
        cost_model=costs,
        budget=confirmation.budget,
        evaluator=evaluator,
        random=SplitMix64(settings.seed),
        clock=time.monotonic,
        progress=progress,
        time_limit_s=settings.time_limit_s,
        cancelled=settings.cancelled,
    )
    try:
        if least_accuracy is not None:
            problem = _below_fastest_rung(problem, least_accuracy)
        return SubnetsFound(with_prior(_search(problem, settings.strategy, confirmation), prior), confirmation, prior)
    finally:
        evaluator.close()


def _below_fastest_rung(problem: SearchProblem, least_accuracy: float) -> SearchProblem:
    """``problem`` with the latency of the fastest rung that is accurate enough, or of the full model, as its budget."""
    climbed = climb(problem)
    enough = [one.cost.latency_ms for one in climbed.known if one.accuracy >= least_accuracy]
    limit_ms = min(enough, default=problem.cost_model.latency_ms(problem.supernet.original))
    return replace(climbed, budget=msgspec.structs.replace(problem.budget, latency_ms=limit_ms))


def judge_subnets(
    workspace: Workspace,
    costs: CostModel,
    samples: Samples,
    subnets: Sequence[Subnet],
    prior: Prior | None,
    settings: AdaptationSettings,
) -> Sequence[float | None]:
    """Accuracies on the samples that are held back; None without any."""
    if not len(samples.held):
        return [None] * len(subnets)
    inputs, labels = samples.inputs.subset(samples.held), samples.labels[samples.held]
    evaluator = make_evaluator(workspace, costs, settings, inputs, labels)
    evaluator.use_prior(prior)
    try:
        return evaluator.accuracies(subnets)
    finally:
        evaluator.close()


def with_prior(found: SearchResult, prior: Prior | None) -> SearchResult:
    """The same with ``prior`` in the plans of all candidates, which were judged under it."""
    pool = tuple(replace(one, plan=one.plan.with_prior(prior)) for one in found.pool)
    best = next((one for one in pool if found.best is not None and one.subnet == found.best.subnet), None)
    return replace(found, pool=pool, best=best)


def _search(problem: SearchProblem, strategy: str, confirmation: Confirmation) -> SearchResult:
    """Search within the budget in terms of predictions.

    Where nothing is predicted to fit, the fastest subnet is measured; if it may keep the budget, its neighbourhood is
    searched.

    Raises:
        InfeasibleBudgetError: nothing keeps the budget.
    """
    supernet, costs = problem.supernet, problem.cost_model
    aimed = problem.budget
    if aimed == confirmation.budget:
        aimed = confirmation.aim(rungs_near(supernet, costs, aimed))
    try:
        return find_subnets(make_strategy(strategy), replace(problem, budget=aimed))
    except InfeasibleBudgetError:
        fastest = fastest_within(supernet, costs, memory_mb=aimed.memory_mb)
        if fastest is None:
            raise
        confirmation.require_chance(fastest, costs.peak_bytes(fastest))
        nearest = msgspec.structs.replace(aimed, latency_ms=costs.latency_ms(fastest) * EQUAL_LATENCY)
        return find_subnets(make_strategy(strategy), replace(problem, budget=nearest))


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
