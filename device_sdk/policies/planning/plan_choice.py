"""Choosing a plan for a requirement: the device answers private samples in all ways it has, ``planner`` chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.data.views import VIEWS
from device_sdk.errors import InputError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.calibration import placed_exits
from device_sdk.policies.costs.answers import Answers, answer_everywhere, answer_views
from device_sdk.policies.costs.evidence import Evidence
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.deciding.thresholds import choose_exits
from device_sdk.policies.exits.timed_exits import with_further_exits
from device_sdk.policies.measured_splits.few_bits import Received, answers_in_few_bits, few_bits_ms
from device_sdk.policies.planning.best_rungs import best_rungs
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.planner import Planner
from device_sdk.policies.planning.promised_plans import PromisedPlans
from device_sdk.policies.planning.server_evidence import Servers
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel, PlanCost, Power
from device_sdk.supernet.plan import ExitChoice, Plan, Subnet
from device_sdk.supernet.requirement import Requirement

_BATCH = 64
_DROPS = (0.0025, 0.01, 0.03)  # accuracy that exits may cost: a set of exits for each
HELD_OUT = 3  # every third sample, from the first on, judges the choice
_FEW_SAMPLES = 30  # below, all of them choose
_VIEWS_S = 10.0  # spent at most on answering views of the samples
_FEW_BITS_S = 10.0  # the same for what tails answer to activations in few bits


@dataclass(frozen=True)
class Planned:
    """A choice, and what its plan is expected to cost on ``judged`` of the ``samples``, which it did not see.

    ``held_out``: None where there were too few samples to hold any out; ``servers``: what was known of them;
    ``planner``: for further requirements and networks, over the same samples. Where the requirement states a certainty,
    the samples judged also tested the plans, so that ``held_out`` is a little too good.
    """

    choice: Choice
    held_out: PlanCost | None
    samples: int
    judged: int
    servers: Servers
    planner: PromisedPlans


def choose_plan(
    workspace: Workspace,
    profile: Profile,
    subnets: Sequence[Subnet],
    inputs: Inputs | Array,
    labels: npt.NDArray[np.int64] | None,
    requirement: Requirement,
    servers: Servers,
    *,
    power: Power | None,
    progress: Progress,
    timed_exits: bool = False,
    use_ladder: bool = False,
) -> Planned:
    """Choose a plan on two thirds of the samples, and judge it on the rest.

    Args:
        inputs: all samples, or an array [count, *input] of prepared ones.
        workspace: its prior of classes, if any, corrects all answers and becomes part of the plans.
        labels: [count]; without them the server's answers stand in, or else those of the first subnet.
        timed_exits: plans keep an exit at each cut point for deadlines and anytime answers, unless memory is limited:
            what is left of it is not known to suffice. Ordinary answers are as without them.
        use_ladder: plans are made of the best rungs of the ladder too (``best_rungs``).

    Raises:
        InfeasibleBudgetError: no plan keeps the requirement; names the nearest.
        InputError: there are no samples, or labels and samples differ in number.
    """
    costs, inputs, count = profile.cost_model(), as_inputs(inputs), len(inputs)
    if labels is None and servers.logits is not None:
        labels = servers.logits.argmax(axis=1)
    if not count or (labels is not None and len(labels) != count):
        raise InputError(f"there are {count} samples and {0 if labels is None else len(labels)} labels")
    judging = np.arange(0, count, HELD_OUT) if count >= _FEW_SAMPLES else np.arange(0)
    choosing = np.setdiff1d(np.arange(count), judging)

    def answer(subnet: Subnet) -> Answers:
        return answer_everywhere(workspace, subnet, inputs, labels, use_exits=True, batch=_BATCH)

    answers = [answer(subnets[0])]
    labels = answers[0].labels
    if use_ladder:
        rungs = best_rungs(workspace, costs, inputs, labels, choosing, requirement, progress=progress)
        subnets = list(dict.fromkeys([*subnets, *rungs]))
    with progress.task("answer in all ways", len(subnets)) as task:
        task.advance()
        for subnet in subnets[1:]:
            answers.append(answer(subnet))
            task.advance()
    views = {}
    supernet = workspace.supernet
    for subnet in _affordable(subnets, _VIEWS_S, lambda one: VIEWS * count * costs.latency_ms(one) / 1e3):
        views[subnet] = answer_views(workspace, subnet, inputs, batch=_BATCH)
    received: Received = {}
    if servers.tails is not None:
        own_size = [subnet for subnet in subnets if not subnet.input_size]
        for subnet in _affordable(own_size, _FEW_BITS_S, lambda one: count * few_bits_ms(supernet, one, costs) / 1e3):
            received |= answers_in_few_bits(workspace, subnet, inputs)
    evidence = replace(_joined(answers, servers), views=views, received=received)
    planner = Planner(
        workspace.supernet,
        evidence.part(choosing),
        costs,
        subnets,
        exit_sets={one.subnet: exit_sets(one.part(choosing), costs) for one in answers},
        exits={one.subnet: exit_choices(one.part(choosing), costs) for one in answers},
        server=servers.asked,
        tail_server=servers.tails,
        privacy=servers.privacy,
    )
    held = evidence.part(judging)

    def tested(plan: Plan) -> tuple[int, int] | None:
        cost = expected_cost(workspace.supernet, plan, held, costs)
        answered = round(held.count * cost.coverage)
        return None if cost.accuracy is None else (answered, round(answered * (1 - cost.accuracy)))

    def finished(plan: Plan, wanted: Requirement) -> Plan:
        plan = plan.with_prior(workspace.prior)
        keeps = timed_exits and wanted.peak_bytes is None
        return with_further_exits(workspace.supernet, plan) if keeps else plan

    promising = PromisedPlans(planner, tested, held.count, finished)
    choice = promising.best(requirement, servers.network, power)
    held_out = None
    if held.count:
        held_out = expected_cost(workspace.supernet, choice.plan, held, costs, servers.network, power)
    return Planned(choice, held_out, evidence.count, held.count, servers, promising)


def _affordable(subnets: Sequence[Subnet], limit_s: float, seconds: Callable[[Subnet], float]) -> Iterator[Subnet]:
    """The first subnets, as far as what each takes fits into the time limit together."""
    left_s = limit_s
    for subnet in subnets:
        left_s -= seconds(subnet)
        if left_s < 0:
            return
        yield subnet


def exit_sets(answers: Answers, costs: CostModel) -> list[tuple[ExitChoice, ...]]:
    """Exits with thresholds for a subnet: one set for each accuracy that they may cost."""
    exits = [answers.at_exit(number, costs) for number in placed_exits(answers, costs, memory_bytes=None)]
    right, full_ms = answers.right(-1), costs.latency_ms(answers.subnet)
    found = [choose_exits(exits, right_at_end=right, full_ms=full_ms, accuracy_drop=drop) for drop in _DROPS]
    return [one for one in dict.fromkeys(map(tuple, found)) if one]


def exit_choices(answers: Answers, costs: CostModel) -> list[ExitChoice]:
    """The exits of a subnet that are worth their memory and time, without thresholds."""
    return [answers.at_exit(number, costs).choice for number in placed_exits(answers, costs, memory_bytes=None)]


def _joined(answers: Sequence[Answers], servers: Servers) -> Evidence:
    """All answers to the same samples."""
    found = [one.evidence for one in answers]
    return Evidence(
        answers[0].labels,
        ends={subnet: logits for one in found for subnet, logits in one.ends.items()},
        exits={branch: logits for one in found for branch, logits in one.exits.items()},
        servers={} if servers.asked is None or servers.logits is None else {servers.asked: servers.logits},
        pool=servers.pool,
    )
