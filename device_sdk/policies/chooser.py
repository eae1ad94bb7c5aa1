"""The one chooser: gather evidence, have plans proposed, judge them, confirm the best by measuring.

Subnets come from a search (``subnet_search``), everything else from the proposers (``planning/proposers``) over what
the best subnets and the connected servers answer. Samples that are held back judge what the others chose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import numpy as np

from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.confirmation import DEFAULT_PAUSE_S, EQUAL_LATENCY, Confirmed, Measure
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.policies.evidence_gathering import collect
from device_sdk.policies.exits.placed_exits import measured_in_turns, paced_in_turns, without_timed_exits
from device_sdk.policies.found import Found, Measured
from device_sdk.policies.gathering import AdaptationSettings, Samples, accuracy_interval, gather, prepare_ms
from device_sdk.policies.plan_homes import candidates_at_each_home, plans_at_each_home
from device_sdk.policies.planning.choice import Choice, Option
from device_sdk.policies.planning.front import PlanFront, make_front
from device_sdk.policies.planning.plan_region import PlanRegion
from device_sdk.policies.planning.planner import PromisedPlans
from device_sdk.policies.planning.proposers import may_be_faster
from device_sdk.policies.planning.server_evidence import Servers
from device_sdk.policies.subnet_search import SubnetsFound, judge_subnets, search_subnets
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget, PlanCost, Power
from device_sdk.supernet.goal import Goal, Requirement
from device_sdk.supernet.plan import Plan, Subnet
from device_sdk.tasks import answer_task
from device_sdk.tasks.port import Targets

_SUBNETS = 12  # of the pool that other kinds of plans are made of
_SLOWEST = 3.0  # times the budget: exits and servers rarely save more
_CHOSEN_AGAIN, _STRICTER = 4, 0.95  # times that a subnet may measure too slow; how much stricter the limit gets
_LEAST_ACCURACY = 1e-6  # that a requirement can state


@dataclass(frozen=True)
class Here:
    """Everything that a choice depends on beside the goal and the samples.

    ``workspace``: without a prior; ``plan``: in use; ``known``: subnets of an earlier choice; ``servers``: what is
    known of those that are connected; ``measure``: how latencies are taken, by default on this device.
    """

    workspace: Workspace
    profile: Profile
    plan: Plan
    known: Sequence[Subnet] = ()
    servers: Servers = field(default_factory=Servers)
    power: Power | None = None
    measure: Measure | None = None


def choose(
    inputs: Inputs | Array,
    labels: Targets | None,
    goal: Goal,
    kinds: Collection[str],
    here: Here,
    *,
    settings: AdaptationSettings,
    progress: Progress,
    confirm: bool = True,
) -> Found:
    """Choose the best plan of ``kinds`` for ``goal``.

    Args:
        inputs: all samples, or an array [count, *input] of prepared ones.
        confirm: exits are measured; otherwise the prediction is trusted.
        labels: targets [count, …] of the bundle's task; without them the server's answers stand in, or else those of
            the full model, or where subnets are not considered, of the one in use.

    Raises:
        InfeasibleBudgetError: no plan keeps the goal; names the nearest.
        BudgetError: the search was stopped before it had anything, or the cap is too small for the largest block.
        InputError: there are no samples, some are not finite, or labels do not match them or the classes.
    """
    started, searches, workspace = time.monotonic(), "subnets" in kinds, here.workspace
    task = answer_task(workspace.bundle.manifest.task)
    estimates = settings.use_prior and task.classifies and labels is not None
    if labels is None:
        labels = _answers_in_place_of_labels(inputs, here, settings, searches=searches)
    samples = gather(workspace, inputs, labels, settings, searches=searches)
    found: SubnetsFound | None = None
    if searches:
        try:
            found = _search(samples, goal, here, estimates=estimates, settings=settings, progress=progress)
        except InfeasibleBudgetError:
            if not may_be_faster(kinds):
                raise
    if found is not None and goal.is_budget and set(kinds) == {"subnets"}:
        chosen = _confirmed(samples, goal, found, here, settings)
    else:
        chosen = _planned(samples, goal, kinds, found, here, settings, progress, confirm=confirm)
    return replace(chosen, seconds=time.monotonic() - started)


def _answers_in_place_of_labels(
    inputs: Inputs | Array, here: Here, settings: AdaptationSettings, *, searches: bool
) -> Targets | None:
    """The answers of the server, or of the subnet in use; None for those of the full model."""
    if here.servers.logits is not None:
        return np.asarray(here.servers.logits.argmax(axis=1))
    if searches or not len(inputs):
        return None
    workspace = replace(here.workspace, prior=here.plan.class_prior)
    own = answer_everywhere(workspace, here.plan.subnet, inputs, None, use_exits=False, batch=settings.batch)
    return own.labels


def _search(
    samples: Samples, goal: Goal, here: Here, *, estimates: bool, settings: AdaptationSettings, progress: Progress
) -> SubnetsFound:
    budget, least = Budget(latency_ms=math.inf, memory_mb=goal.memory_mb), 1.0
    if goal.limits_latency or goal.is_budget:
        budget, least = goal.budget(), math.nan
    elif goal.accuracy is not None:
        least = goal.accuracy
    return search_subnets(
        here.workspace,
        here.profile,
        samples,
        budget,
        estimate_prior=estimates,
        settings=settings,
        progress=progress,
        least_accuracy=None if math.isnan(least) else least,
        measure=here.measure,
    )


def _confirmed(samples: Samples, goal: Goal, found: SubnetsFound, here: Here, settings: AdaptationSettings) -> Found:
    """The most accurate subnet of a search that keeps the budget when it is measured."""
    costs, original = here.profile.cost_model(), here.workspace.supernet.original
    budget = found.confirmation.budget
    goal = msgspec.structs.replace(goal.resolved(budget.latency_ms), memory_mb=budget.memory_mb)
    confirmed = _fastest_home(found.confirmation.best(found.result.pool), goal, found, here)
    chosen = confirmed.candidate
    accuracy, full_accuracy = judge_subnets(
        here.workspace, costs, samples, [chosen.subnet, original], found.prior, settings
    )
    expected = _cost(chosen, chosen.accuracy)
    by_kind = {"subnet": Option(chosen.plan, expected, {})}
    full = next((one for one in found.result.pool if one.subnet == original), None)
    if full is not None:
        cost = _cost(full, full.accuracy)
        by_kind["full model"] = Option(full.plan, cost, goal.requirement().misses(cost))
    return Found(
        choice=Choice(chosen.plan, expected, by_kind, found.result.subnets_evaluated),
        goal=goal,
        held_out=None if accuracy is None else _cost(chosen, accuracy),
        measured=_measured(confirmed, samples.inputs),
        accuracy_interval=accuracy_interval(chosen.expected_accuracy, len(samples.labels)),
        full_accuracy=full_accuracy,
        samples=len(samples.labels),
        judged=len(samples.held),
        stopped=found.result.stopped,
        pool=found.result.pool,
    )


def _planned(
    samples: Samples,
    goal: Goal,
    kinds: Collection[str],
    found: SubnetsFound | None,
    here: Here,
    settings: AdaptationSettings,
    progress: Progress,
    *,
    confirm: bool,
) -> Found:
    """The best plan of all kinds over what the best subnets and the servers answer.

    Latencies are predicted as the application sees them: the profile's, back to back, times what the full model took at
    its pace. Exits have to save time when they are measured, else plans without them are judged again.
    """
    costs, original = here.profile.cost_model(), here.workspace.supernet.original
    workspace = replace(here.workspace, prior=here.plan.class_prior if found is None else found.prior)
    full_ms = here.profile.original_ms + here.profile.call_overhead_ms if found is None else found.confirmation.full_ms
    if found is not None:
        costs = costs.slowed(full_ms / (costs.latency_ms(original) + costs.call_overhead_ms))
    resolved = goal.resolved(goal.latency_ms if goal.latency_ratio is None else goal.latency_ratio * full_ms)
    subnets, base = [here.plan.subnet], here.plan.subnet
    if "subnets" in kinds:
        pool, known, base = ((), here.known, original) if found is None else (found.result.pool, (), original)
        early = workspace.supernet.members_with_exits if "exits" in kinds else ()
        subnets = shortlist(original, pool, resolved.latency_ms, [here.plan.subnet, *known, *early])
    answered = collect(workspace, costs, subnets, samples, here.servers, kinds=kinds, progress=progress)
    least = None if goal.max_drop is None else max(answered.accuracy(base) - goal.max_drop, _LEAST_ACCURACY)
    requirement, network = resolved.requirement(least_accuracy=least), here.servers.network
    timed_exits = "exits" in kinds
    planner = answered.planner(kinds, goal, base, timed_exits=timed_exits)
    choice = planner.best(requirement, network, here.power)
    notes = (*here.servers.notes, *_not_asked(planner, here.servers))
    timed = _timed_ways(workspace, choice, samples.inputs) if confirm else None
    again, stricter = _CHOSEN_AGAIN, requirement
    while timed is not None and _fails(timed, resolved, choice.plan):
        again -= 1
        quicker = _quicker_cascade(choice, planner, stricter, timed[0], here) if again else None
        if quicker is not None:
            choice, stricter = quicker
        else:
            left_out, named = ("exits", "exits are") if choice.plan.second is None else ("cascade", "cascades are")
            notes = (*notes, f"{named} left out: with them calls took {timed[0]:.3g} ms, without {timed[1]:.3g} ms")
            kinds = [kind for kind in kinds if kind != left_out]
            planner = answered.planner(kinds, goal, base, timed_exits=timed_exits)
            choice = planner.best(requirement, network, here.power)
        timed = _timed_ways(workspace, choice, samples.inputs)
    if found is not None and goal.is_budget and choice.kind == "subnet":
        rivals, own = [one for kind, one in choice.by_kind.items() if kind != "subnet" and not one.misses], choice.plan
        try:
            plain = _confirmed(samples, goal, found, here, settings)
            rivals = [one for one in rivals if planner.planner.surely_gains(one.plan, own, network)]
        except InfeasibleBudgetError:  # what fits as predicted is too slow when it is measured
            if not rivals:
                raise
            plain = None
        rival = max(rivals, key=_accuracy, default=None)
        if plain is not None and rival is not None and _accuracy(rival) <= (plain.expected.accuracy or 0.0):
            rival = None
        if rival is not None:
            choice = replace(choice, plan=planner.finished(rival.plan, requirement), cost=rival.cost)
            timed = _timed_ways(workspace, choice, samples.inputs)
        if plain is not None and (rival is None or (timed is not None and _fails(timed, resolved, choice.plan))):
            by_kind = {**choice.by_kind, **plain.by_kind}
            chosen = replace(plain.choice, by_kind=by_kind, considered=choice.considered)
            return replace(plain, choice=chosen, notes=notes)
    measured, plan = None, choice.plan
    if timed is not None:
        plan, timed = _timed_at_fastest_home(workspace, plan, timed, samples.inputs, goal.threads)
        measured = _mean(timed, full_ms, prepare_ms(samples.inputs, plan.input_size))
    elif found is not None and choice.kind == "subnet":
        choice, confirmed = _fitting(choice, planner, requirement, found, here)
        plan = choice.plan
        if confirmed is not None:
            confirmed = _fastest_home(confirmed, goal, found, here)
            plan, measured = confirmed.candidate.plan, _measured(confirmed, samples.inputs)
    full_cost = None
    if original in answered.evidence.ends:
        full_cost = answered.held_out(Plan(original).with_prior(workspace.prior))
    return Found(
        choice=replace(choice, plan=plan),
        goal=resolved,
        held_out=answered.held_out(choice.plan, network, here.power),
        measured=measured,
        accuracy_interval=accuracy_interval(choice.cost.accuracy or 0.0, len(samples.labels)),
        full_accuracy=None if full_cost is None else full_cost.accuracy,
        samples=len(samples.labels),
        judged=len(samples.held),
        stopped="done" if found is None else found.result.stopped,
        notes=notes,
        pool=() if found is None else found.result.pool,
        front=None if network is None else partial(_front, planner, requirement, here),
        region=None
        if network is None
        else PlanRegion(
            lambda factor: answered.planner(kinds, goal, base, timed_exits=timed_exits, slower=factor).planner,
            network,
            requirement,
            answered.accuracy(base),
            here.power,
        ),
    )


def _fastest_home(confirmed: Confirmed, goal: Goal, found: SubnetsFound, here: Here) -> Confirmed:
    """``confirmed``, with all blocks at one home where they measure faster there."""
    costs = here.profile.cost_model()
    others = candidates_at_each_home(here.workspace, costs, confirmed.candidate, goal.threads)
    return found.confirmation.fastest(confirmed, others)


def _timed_at_fastest_home(
    workspace: Workspace, plan: Plan, timed: list[float], inputs: Inputs, threads: int | None
) -> tuple[Plan, list[float]]:
    """``plan``, with all blocks at one home where it is faster there, with its times (``_timed_ways``)."""
    every = [plan, *plans_at_each_home(workspace, plan, threads)]
    if len(every) == 1 or workspace.memory_cap_bytes is not None:  # no room for several under a cap
        return plan, timed
    shown = list(map(without_timed_exits, every))
    times = paced_in_turns(workspace, shown, inputs, pause_s=DEFAULT_PAUSE_S)
    fastest = every[times.index(min(times))]
    if fastest is plan:
        return plan, timed
    return fastest, measured_in_turns(workspace, without_timed_exits(fastest), inputs)


def _fitting(
    choice: Choice,
    planner: PromisedPlans,
    requirement: Requirement,
    found: SubnetsFound,
    here: Here,
) -> tuple[Choice, Confirmed | None]:
    """The choice, measured; as long as its subnet measures too slow, the best within a limit that much stricter.

    Raises:
        InfeasibleBudgetError: nothing is left that keeps the limit when it is measured.
    """
    for again in reversed(range(_CHOSEN_AGAIN)):
        alone = Candidate(choice.plan, here.profile.cost_model().cost(choice.plan.subnet), choice.cost.accuracy or 0.0)
        try:
            return choice, found.confirmation.best([alone])
        except InfeasibleBudgetError as error:
            if not again or requirement.latency_ms is None:
                raise
            requirement = _stricter(requirement, error.nearest_latency_ms)
            choice = planner.best(requirement, here.servers.network, here.power)
            if choice.kind != "subnet":
                return choice, None
    raise AssertionError("the last attempt returns or raises")


def _quicker_cascade(
    choice: Choice, planner: PromisedPlans, requirement: Requirement, took_ms: float, here: Here
) -> tuple[Choice, Requirement] | None:
    """The best cascade under a stricter limit, and that limit, where one ``took_ms``; None where none is best."""
    if choice.plan.second is None or requirement.latency_ms is None:
        return None
    stricter = _stricter(requirement, took_ms)
    nearest = planner.nearest(stricter, here.servers.network, here.power)
    return None if nearest.misses or nearest.plan.second is None else (nearest, stricter)


def _stricter(requirement: Requirement, took_ms: float) -> Requirement:
    """``requirement`` with a lower latency limit, since a plan that was predicted to keep it took longer."""
    assert requirement.latency_ms is not None
    stricter_ms = requirement.latency_ms * min(requirement.latency_ms / took_ms, _STRICTER)
    return msgspec.structs.replace(requirement, latency_ms=stricter_ms)


def _front(planner: PromisedPlans, requirement: Requirement, here: Here) -> PlanFront:
    network = here.servers.network
    assert network is not None
    return make_front(
        lambda there: planner.nearest(requirement, there, here.power),
        planner.planner.route,
        requirement,
        network,
        here.power,
    )


def _not_asked(planner: PromisedPlans, servers: Servers) -> list[str]:
    useless = [one for one in servers.asked if one in planner.planner.useless]
    return [f"{one.model} is asked about no hard sample: on left-out samples that gains nothing" for one in useless]


def _accuracy(one: Option) -> float:
    return one.cost.accuracy or 0.0


def _fails(timed: Sequence[float], goal: Goal, plan: Plan) -> bool:
    """True if exits save no time, or the mean with them, or with a second path, is above the goal's latency."""
    limit_ms = math.inf if goal.latency_ms is None else goal.latency_ms
    return (plan.second is None and timed[0] >= timed[1]) or timed[0] > EQUAL_LATENCY * limit_ms


def _timed_ways(workspace: Workspace, choice: Choice, inputs: Inputs) -> list[float] | None:
    """Mean latency of a plan with exits that samples leave by, or a cascade, and of its subnet alone, in turns.

    None for plans whose samples all take one way, or go to a server.
    """
    plan = without_timed_exits(choice.plan)
    one_way = not plan.exits and plan.second is None
    if one_way or plan.split is not None or plan.asks_early:
        return None
    return measured_in_turns(workspace, plan, inputs)


def shortlist(
    original: Subnet, pool: Sequence[Candidate], latency_ms: float | None, others: Sequence[Subnet] = ()
) -> list[Subnet]:
    """The subnets that other kinds of plans are made of: the full model, ``others``, and the best of a search's pool.

    Those are the most accurate that exits or servers may make fit, and each that no faster one matches in accuracy.
    """
    near = [one for one in pool if latency_ms is None or one.cost.latency_ms <= _SLOWEST * latency_ms]
    accurate = sorted(near, key=lambda one: (-one.expected_accuracy, one.cost.latency_ms))
    front, best = list[Candidate](), -1.0
    for one in sorted(near, key=lambda one: (one.cost.latency_ms, -one.expected_accuracy)):
        if one.expected_accuracy > best:
            best = one.expected_accuracy
            front.append(one)
    chosen = [*accurate[: _SUBNETS // 2], *front[::-1]][:_SUBNETS]
    return list(dict.fromkeys([original, *others, *(one.subnet for one in chosen)]))


def _cost(one: Candidate, accuracy: float) -> PlanCost:
    """The expected cost of a subnet that answers every sample."""
    latency_ms, peak_bytes = one.cost.latency_ms, one.cost.peak_bytes
    return PlanCost(
        accuracy=accuracy, latency_ms=latency_ms, p95_latency_ms=latency_ms, bytes_sent=0.0, peak_bytes=peak_bytes
    )


def _measured(confirmed: Confirmed, inputs: Inputs) -> Measured:
    return Measured(
        latency_ms=confirmed.measured_ms,
        interval_ms=confirmed.interval_ms,
        median_ms=confirmed.median_ms,
        within_budget_probability=confirmed.probability,
        full_ms=confirmed.full_ms,
        slowdown=confirmed.slowdown,
        prepare_ms=prepare_ms(inputs, confirmed.candidate.subnet.input_size),
    )


def _mean(timed: Sequence[float], full_ms: float, preparing_ms: float) -> Measured:
    """Measurement of a plan with exits: its mean in turns with the same plan without."""
    mean_ms, without_ms = timed
    return Measured(
        latency_ms=mean_ms,
        interval_ms=(mean_ms, mean_ms),
        median_ms=mean_ms,
        within_budget_probability=1.0,
        full_ms=full_ms,
        prepare_ms=preparing_ms,
        without_exits_ms=without_ms,
    )
