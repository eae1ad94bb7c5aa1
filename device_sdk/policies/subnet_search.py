"""Proposing subnets: a search on private data, the ladder first, aimed by measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.paging import PagedEdges, each_edge
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.confirmation import EQUAL_LATENCY, Confirmation, Measure, paced_measure
from device_sdk.policies.gathering import AdaptationSettings, Samples, find_prior
from device_sdk.profiling.profile import Profile
from device_sdk.profiling.timing import Latency
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.search import find_subnets, make_strategy
from device_sdk.search.evaluation.evaluator import Load, PrefixTreeEvaluator
from device_sdk.search.ladder import climb, largest_first, rungs_near
from device_sdk.search.nearby import fastest_within, smallest_subnet
from device_sdk.search.port import Candidate, SearchProblem, SearchResult
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.plan import Prior, Subnet
from device_sdk.supernet.supernet import Supernet
from device_sdk.tasks import answer_task
from device_sdk.tasks.port import Targets

_MOST_WORKERS = 4  # each needs working memory, and an application wants cores too
_LOWER_AIMS = 3  # searches after the first one, each within a lower budget


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
    named = profile.cost_model()
    costs = at_best_homes(workspace, named, budget.threads)
    budget = within_cap(workspace.supernet, costs, budget, workspace.memory_cap_bytes)
    evaluator = make_evaluator(
        workspace, costs, settings, samples.inputs.subset(samples.kept), samples.labels[samples.kept]
    )
    try:
        measure = measure or paced_measure(workspace, budget)
        confirmation = Confirmation(
            workspace.supernet.original,
            named,
            budget,
            measure if workspace.memory_cap_bytes is None else _alone(measure, evaluator),
            original_ms=profile.original_ms,
            overhead_ms=profile.call_overhead_ms,
        )
        prior = samples.prior
        if estimate_prior:
            prior = find_prior(*evaluator.full_model_logits())
            evaluator.release()  # the full model is not needed again soon
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
        if least_accuracy is not None:
            problem = _below_fastest_rung(problem, least_accuracy)
        found = _search(problem, settings.strategy, confirmation)
    finally:
        evaluator.close()
    pool = at_named_homes(found.pool, costs, named)
    best = None if found.best is None else next(iter(at_named_homes([found.best], costs, named)))
    return SubnetsFound(with_prior(replace(found, pool=tuple(pool), best=best), prior), confirmation, prior)


def _alone(measure: Measure, evaluator: PrefixTreeEvaluator) -> Measure:
    """``measure`` with nothing else loaded: what is measured may take all memory that the cap allows."""

    def measured(subnets: Sequence[Subnet], as_served: bool) -> list[Latency]:
        evaluator.release()
        return measure(subnets, as_served)

    return measured


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


def at_best_homes(workspace: Workspace, costs: CostModel, threads: int | None = None) -> CostModel:
    """``costs`` for a search: edges name no home, and run at the best of theirs, of at most so many ``threads``."""
    supernet = workspace.supernet
    return costs.at_best_homes(workspace.homes.within(threads).of_each(supernet, supernet.edges))


def at_named_homes(pool: Sequence[Candidate], costs: CostModel, named: CostModel) -> list[Candidate]:
    """Candidates of a search by ``costs`` (``at_best_homes``), with every edge's home named.

    The full model, which other plans are compared with, is among them at the first home too.
    """
    if not costs.homes:
        return list(pool)

    def at(one: Candidate, subnet: Subnet) -> Candidate:
        plan = msgspec.structs.replace(one.plan, subnet=subnet)
        return replace(one, plan=plan, cost=named.cost(subnet))

    housed = [at(one, costs.housed(one.subnet)) for one in pool]
    known = {one.subnet for one in housed}
    at_first = [at(one, one.subnet) for one in pool if one.subnet not in known and named.knows(one.subnet)]
    return [*housed, *at_first]


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
        near = rungs_near(supernet, costs, aimed)
        aimed = confirmation.aim(*(list(map(costs.housed, ones)) for ones in (near, largest_first(supernet, near))))
    try:
        return _search_aimed(replace(problem, budget=aimed), strategy, confirmation)
    except InfeasibleBudgetError:
        fastest = fastest_within(supernet, costs, memory_mb=aimed.memory_mb)
        if fastest is None:
            raise
        confirmation.require_chance(costs.housed(fastest), costs.peak_bytes(fastest))
        nearest = msgspec.structs.replace(aimed, latency_ms=costs.latency_ms(fastest) * EQUAL_LATENCY)
        return find_subnets(make_strategy(strategy), replace(problem, budget=nearest))


def _search_aimed(problem: SearchProblem, strategy: str, confirmation: Confirmation) -> SearchResult:
    """Search within the budget of ``problem``, and again within a lower one where that was too high for what was found.

    Each search looks at one new subnet at least, also when time is up.

    Raises:
        InfeasibleBudgetError: nothing is predicted to fit the first budget.
    """
    started_s, limit_s = problem.clock(), problem.time_limit_s
    found = find_subnets(make_strategy(strategy), problem)
    for _ in range(_LOWER_AIMS):
        lower = None if found.stopped == "cancelled" else confirmation.aim_lower(found.pool, problem.budget)
        if lower is None:
            break
        left_s = None if limit_s is None else max(0.0, limit_s - (problem.clock() - started_s))
        problem = replace(problem, budget=lower, known=found.pool, time_limit_s=left_s)
        try:
            found = find_subnets(make_strategy(strategy), problem)
        except InfeasibleBudgetError:  # what is known stays
            break
    return found


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
    labels: Targets,
) -> PrefixTreeEvaluator:
    """Evaluates subnets on ``inputs`` with ``labels`` [count, …], the targets of the bundle's task.

    Batches are small where features are large (``settings.batch_bytes``). Under a memory cap, edges
    leave memory for others, features get at most half of what the largest edge leaves, batches are as large as then
    fits, and one is evaluated at a time.
    """
    bundle, cap_bytes = workspace.bundle, workspace.memory_cap_bytes
    cache_bytes = workspace.room_for_features(settings.cache_bytes)
    workers = settings.workers or min(workspace.runtime.concurrency, _MOST_WORKERS) if cap_bytes is None else 1
    batch = _batch_within(bundle.supernet, settings.batch, settings.batch_bytes)
    load: Load = workspace.taking_turns().load_at_any_size
    if cap_bytes is not None:
        room = replace(workspace, memory_cap_bytes=cap_bytes - cache_bytes)
        batch = room.largest_batch(each_edge(bundle), wanted=batch)
        load = PagedEdges(bundle, workspace.runtime, cap_bytes=cap_bytes - cache_bytes, batch=batch)
    return PrefixTreeEvaluator(
        bundle.supernet,
        load,
        inputs,
        labels,
        cost_model,
        batch=batch,
        cache_bytes=cache_bytes,
        workers=workers,
        task=answer_task(bundle.manifest.task),
    )


def _batch_within(supernet: Supernet, wanted: int, most_bytes: int) -> int:
    """``wanted`` samples, or half as many again and again until the tensors at a block's ends take ``most_bytes``."""
    edges = [edge for edge in supernet.edges if not edge.input_size]
    largest_bytes = max(sum(cut.nbytes for cut in supernet.ends(edge)) for edge in edges)
    batch = wanted
    while batch > 1 and batch * largest_bytes > most_bytes:
        batch //= 2
    return batch
