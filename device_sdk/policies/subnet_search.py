"""Proposing subnets: a search on private data, the ladder first, aimed and confirmed by measurements in pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from device_sdk.data.inputs import Inputs
from device_sdk.errors import BudgetError, InfeasibleBudgetError
from device_sdk.execution.paging import PagedEdges, each_edge
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.gathering import AdaptationSettings, Samples, find_prior
from device_sdk.profiling.latency_belief import PRECISE, LatencyBelief
from device_sdk.profiling.profile import Profile, measure_subnets
from device_sdk.profiling.stretches import Timing
from device_sdk.profiling.timing import Latency, Patience, Ratio
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.search import find_subnets, make_strategy
from device_sdk.search.evaluation.evaluator import Load, PrefixTreeEvaluator
from device_sdk.search.ladder import climb, largest_first, rungs_near
from device_sdk.search.nearby import fastest_within, smallest_subnet
from device_sdk.search.port import Candidate, SearchProblem, SearchResult, by_expected_accuracy
from device_sdk.supernet.cost import MB, Budget, CostModel
from device_sdk.supernet.plan import Prior, Subnet
from device_sdk.supernet.supernet import Supernet
from device_sdk.tasks import answer_task
from device_sdk.tasks.port import Targets

_MOST_WORKERS = 4  # each needs working memory, and an application wants cores too
LIMIT_S = 12.0  # of measuring candidates; on a quiet device two seconds suffice
EQUAL_LATENCY = 1.02  # latencies within 2 % are equal: two sessions of one model differ by that
SURE, DOUBTFUL = 0.9, 0.02  # probabilities of keeping the budget: taken at once, ruled out
_LEAST_GAIN = 0.0005  # expected accuracy that makes a measurement worth its time
_ABOUT_AS_LIKELY = 0.1  # of the largest probability
_REPEATED = 2  # measurements of the full model, back to back and paced in turns
_AT_ONCE = 3  # candidates measured together, beside the full model
_MOST_TURNS = 8
_LOWER_AIMS = 3  # searches after the first one, each within a lower budget
_CLIFF = 0.02  # expected accuracy below the best candidate, at which a lower aim is worth its time
_MOST_SLOWDOWN = 4.0  # of a busy device; a profile that promises more than this is wrong
_LEAST_MS = 1e-6
_NORMAL_95 = 1.96
_MEDIAN = 50.0
_PACED_PATIENCE = Patience(rounds=16, precision=0.006, limit_s=1.2, least=10)
_TOGETHER_PATIENCE = Patience(rounds=60, precision=0.006, limit_s=0.4, least=10)
_TAIL_ROUNDS = 60  # of a percentile other than the median
DEFAULT_PAUSE_S = 0.02  # between calls, without a known pace: enough for caches and clocks to settle as between frames
_LONGEST_PAUSE_S = 0.1  # rarer calls are hardly slower

Measure = Callable[[Sequence[Subnet], bool], list[Latency]]
"""Times subnets in turns, the full model first, with ratios to it; paced as the application calls, or back to back."""


@dataclass(frozen=True)
class Confirmed:
    """A candidate, and the latency that it has when nothing else runs on the device.

    ``measured_ms``: at the budget's percentile, ``median_ms`` at the median; ``interval_ms``: 95 % of ``measured_ms``.
    ``probability``: that it keeps the budget; 1 without a latency budget.
    ``full_ms``: the full model's latency in quiet, called at the same pace. ``slowdown``: of the device while it was
    measured, over quiet.
    """

    candidate: Candidate
    measured_ms: float
    median_ms: float
    interval_ms: tuple[float, float]
    probability: float
    full_ms: float
    slowdown: float


class Confirmation:
    """Measures as few candidates as it takes to know the most accurate one that keeps ``budget``.

    ``original_ms``: the full model's latency in the profile, back to back. ``overhead_ms``: of a call, beyond the
    models that it runs. ``clock``: seconds, monotonic; ``best`` begins no measurement after ``limit_s``.
    """

    def __init__(
        self,
        original: Subnet,
        cost_model: CostModel,
        budget: Budget,
        measure: Measure,
        *,
        original_ms: float,
        overhead_ms: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._original, self._costs, self._measure = original, cost_model, measure
        self._overhead_ms, self._clock, self._limit_s = overhead_ms, clock, limit_s
        self._belief = LatencyBelief(original, cost_model)  # at the budget's percentile, to the full model's median
        self._spreads: dict[Subnet, float] = {}  # the latency at that percentile over the median
        pairs = [[self._measure([original], as_served)[0] for as_served in (False, True)] for _ in range(_REPEATED)]
        tight_ms = _mean([tight.median_ms for tight, _ in pairs])
        quiet_ms = min(original_ms, tight_ms)
        contention = min(tight_ms / quiet_ms, _MOST_SLOWDOWN)  # of caches and clocks; waiting is not in the medians
        self.slowdown = max(_mean([tight.elapsed_ms or tight.median_ms for tight, _ in pairs]) / quiet_ms, contention)
        self.full_ms = _mean([paced.median_ms for _, paced in pairs]) / contention + overhead_ms
        self._spreads[original] = _mean([paced.at_percentile_ms / paced.median_ms for _, paced in pairs])
        self._belief.observe(original, Ratio(self._spreads[original], PRECISE))
        self.budget = budget.resolved(self.full_ms)
        limit_ms = math.inf if self.budget.latency_ms is None else self.budget.latency_ms
        self._limit = max(EQUAL_LATENCY * limit_ms - overhead_ms, _LEAST_MS) / (self.full_ms - overhead_ms)

    def aim(self, rungs: Sequence[Subnet], largest_first: Sequence[Subnet]) -> Budget:
        """The budget in terms of predictions: corrected by how some ``rungs`` near it measure against theirs.

        The search then proposes subnets that really fit. The error of a prediction depends on the rendition; the first
        of ``largest_first`` that fits stands for what the search will propose, as the rung of the largest input is the
        most accurate. Without a latency budget, the budget itself.
        """
        if self.budget.latency_ms is None or math.isinf(self.budget.latency_ms):
            return self.budget
        self._take_times(rungs[:_AT_ONCE])
        fitting = (one for one in largest_first if self._belief.estimate(one).ratio <= self._limit)
        return self._aimed_by(next(fitting, [self._original, *largest_first][-1]))

    def aim_lower(self, pool: Sequence[Candidate], aimed: Budget) -> Budget | None:
        """A lower aim than ``aimed``, by which ``pool`` was found; None if that was near enough.

        Too high: what is confirmed is worse by more than ``_CLIFF`` than the most accurate candidate that was predicted
        to fit. Predictions are too low then for what the search proposes, and it should propose something smaller.
        """
        if aimed.latency_ms is None or math.isinf(self._limit):
            return None
        best = min((one for one in pool if aimed.fits(one.cost)), key=by_expected_accuracy, default=None)
        if best is None or self._confirmed_accuracy(pool) >= best.expected_accuracy - _CLIFF:
            return None
        if not self._belief.estimate(best.subnet).measured:
            self._take_times([best.subnet])
        lower = self._aimed_by(best.subnet)
        return lower if lower.latency_ms is not None and lower.latency_ms < aimed.latency_ms else None

    def _confirmed_accuracy(self, pool: Sequence[Candidate]) -> float:
        try:
            return self.best(pool).candidate.expected_accuracy
        except InfeasibleBudgetError:
            return 0.0

    def _aimed_by(self, reference: Subnet) -> Budget:
        """The budget in terms of predictions, if all are off as far as that of ``reference``."""
        predicted_ms, measured = self._costs.latency_ms(reference), self._belief.estimate(reference)
        aimed_ms = self._limit / EQUAL_LATENCY * predicted_ms / measured.ratio
        return msgspec.structs.replace(self.budget, latency_ms=aimed_ms)

    def require_chance(self, subnet: Subnet, peak_bytes: int) -> None:
        """Measure ``subnet``.

        Raises:
            InfeasibleBudgetError: it has no chance to keep the budget.
        """
        self._take_times([subnet])
        if self._belief.estimate(subnet).probability_below(self._limit) < DOUBTFUL:
            raise self._infeasible(subnet, peak_bytes)

    def best(self, pool: Iterable[Candidate]) -> Confirmed:
        """The most accurate candidate of ``pool`` that keeps the budget, by expected accuracy.

        1. estimate all; 2. measure the most accurate one that surely keeps it, and those whose measurement may gain
        most; again, until one that surely does has no rival left that is worth measuring; 3. if that does not happen
        in time, take the most accurate of those that most probably keep it.

        Raises:
            InfeasibleBudgetError: nothing has a chance; names the nearest.
            BudgetError: there are no candidates.
        """
        ranked = sorted((one for one in pool if self.budget.fits_memory(one.cost.peak_bytes)), key=by_expected_accuracy)
        if not ranked:
            raise BudgetError("the search was stopped before it had looked at a subnet within the budget")
        deadline_s = self._clock() + self._limit_s
        for _ in range(_MOST_TURNS):
            unclear = self._worth_measuring(ranked)
            if not unclear or self._clock() >= deadline_s:
                break
            self._take_times([one.subnet for one in unclear[:_AT_ONCE]])
        return self._chosen(ranked)

    def fastest(self, confirmed: Confirmed, others: Sequence[Candidate]) -> Confirmed:
        """``confirmed``, or one of ``others`` with the same answers where it measures faster, in turns with it."""
        if not others:
            return confirmed
        both = [confirmed.candidate, *others]
        self._take_times([one.subnet for one in both])
        ratios = [self._belief.estimate(one.subnet).ratio for one in both]
        quickest = both[ratios.index(min(ratios))]
        return confirmed if quickest is confirmed.candidate else self._chosen([quickest])

    def _worth_measuring(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Candidates to measure, first the most accurate one that surely keeps the budget, unless it was measured.

        Then those more accurate than it whose measurement may gain accuracy, the largest expected gain first: the
        probability of keeping the budget times the difference in expected accuracy.
        """
        estimates = [self._belief.estimate(one.subnet) for one in ranked]
        chances = [one.probability_below(self._limit) for one in estimates]
        sure = next((place for place, chance in enumerate(chances) if chance >= SURE), len(ranked))
        least = ranked[sure].expected_accuracy if sure < len(ranked) else 0.0
        gains = []
        for one, estimate, chance in zip(ranked[:sure], estimates, chances, strict=False):
            gain = chance * (one.expected_accuracy - least)
            clear = estimate.measured and estimate.error <= 2 * PRECISE
            if chance >= DOUBTFUL and gain >= _LEAST_GAIN and not clear:
                gains.append((gain, one))
        rivals = [one for _, one in sorted(gains, key=lambda entry: -entry[0])]
        return rivals if sure == len(ranked) or estimates[sure].measured else [ranked[sure], *rivals]

    def _chosen(self, ranked: Sequence[Candidate]) -> Confirmed:
        chances = {one.subnet: self._belief.estimate(one.subnet).probability_below(self._limit) for one in ranked}
        best = max(chances.values())
        if best < DOUBTFUL:
            nearest = min(ranked, key=lambda one: self._belief.estimate(one.subnet).ratio)
            raise self._infeasible(nearest.subnet, nearest.cost.peak_bytes)
        enough = min(SURE, best - _ABOUT_AS_LIKELY)
        chosen = next(one for one in ranked if chances[one.subnet] >= enough)
        estimate = self._belief.estimate(chosen.subnet)
        scale_ms = self.full_ms - self._overhead_ms
        low, high = (estimate.ratio * math.exp(sign * _NORMAL_95 * estimate.error) for sign in (-1, 1))
        return Confirmed(
            chosen,
            measured_ms=scale_ms * estimate.ratio + self._overhead_ms,
            median_ms=scale_ms * estimate.ratio / self._spreads.get(chosen.subnet, 1.0) + self._overhead_ms,
            interval_ms=(scale_ms * low + self._overhead_ms, scale_ms * high + self._overhead_ms),
            probability=chances[chosen.subnet],
            full_ms=self.full_ms,
            slowdown=self.slowdown,
        )

    def _take_times(self, subnets: Sequence[Subnet]) -> None:
        """Measure ``subnets`` in turns with the full model; a second measurement of one is joined with the first."""
        wanted = [one for one in dict.fromkeys(subnets) if one != self._original]
        if not wanted:
            return
        full, *others = self._measure([self._original, *wanted], True)
        for subnet, latency in zip(wanted, others, strict=True):
            ratio = latency.ratio or Ratio(latency.median_ms / full.median_ms, 2 * PRECISE)
            self._spreads[subnet] = spread = latency.at_percentile_ms / latency.median_ms
            self._belief.observe(subnet, Ratio(ratio.value * spread, min(max(ratio.relative_error, PRECISE), 1.0)))

    def _infeasible(self, nearest: Subnet, peak_bytes: int) -> InfeasibleBudgetError:
        took_ms = self._belief.estimate(nearest).ratio * (self.full_ms - self._overhead_ms) + self._overhead_ms
        return InfeasibleBudgetError(
            f"no subnet ran in {self.budget.latency_ms:.3g} ms; the fastest candidate took {took_ms:.3g} ms",
            nearest=nearest.block_ids,
            nearest_latency_ms=took_ms,
            nearest_peak_bytes=peak_bytes,
            hint=f"allow at least {took_ms * 1.05:.3g} ms",
        )


def paced_measure(workspace: Workspace, budget: Budget) -> Measure:
    """Measurement on this device, at the pace and the percentile of ``budget``."""
    tail = budget.percentile != _MEDIAN
    paced = Timing(
        rounds=_TAIL_ROUNDS if tail else _PACED_PATIENCE.rounds,
        pause_s=_pause_s(budget),
        percentile=budget.percentile if tail else None,
        patience=None if tail else _PACED_PATIENCE,
    )
    together = Timing(rounds=_TOGETHER_PATIENCE.rounds, patience=_TOGETHER_PATIENCE)

    def measure(subnets: Sequence[Subnet], as_served: bool) -> list[Latency]:
        return measure_subnets(workspace, subnets, paced if as_served else together)

    return measure


def _pause_s(budget: Budget) -> float:
    """Seconds that an application at the pace of ``budget`` waits between two calls."""
    if budget.calls_per_second is None:
        return DEFAULT_PAUSE_S
    busy_s = 0.0 if budget.latency_ms is None else budget.latency_ms / 1e3
    return min(max(1.0 / budget.calls_per_second - busy_s, 0.0), _LONGEST_PAUSE_S)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


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
    confirmation = Confirmation(
        workspace.supernet.original,
        named,
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
        found = _search(problem, settings.strategy, confirmation)
        pool = at_named_homes(found.pool, costs, named)
        best = None if found.best is None else next(iter(at_named_homes([found.best], costs, named)))
        return SubnetsFound(with_prior(replace(found, pool=tuple(pool), best=best), prior), confirmation, prior)
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
