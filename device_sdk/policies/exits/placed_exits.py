"""Exits of plans: which are worth their memory and time, which only deadlines need, what remains within less memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.execution.loaded_plan import AtSize
from device_sdk.execution.pager import all_stay
from device_sdk.execution.plan_segments import segments
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import Answers
from device_sdk.policies.deciding.thresholds import choose_exits
from device_sdk.policies.placement import ExitCandidate, place
from device_sdk.profiling.plans import mean_latencies_ms
from device_sdk.runtimes.port import Array
from device_sdk.supernet.blocks import Exit
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Plan, Subnet
from device_sdk.supernet.supernet import Supernet


def with_timed_exits(plan: Plan, exits: Sequence[ExitChoice]) -> Plan:
    """``plan`` with those of ``exits``, in order, that it lacks: deadlines and interruptions alone end with them.

    Their threshold is one that no confidence reaches, so that ordinary runs are as without them (ADR 42).
    """
    known = {choice.exit: choice for choice in plan.exits}
    unreachable = (msgspec.structs.replace(choice, threshold=UNREACHABLE_CONFIDENCE) for choice in exits)
    return msgspec.structs.replace(plan, exits=tuple(known.get(choice.exit, choice) for choice in unreachable))


def with_further_exits(supernet: Supernet, plan: Plan) -> Plan:
    """``plan`` with an exit for deadlines and interruptions at each cut point where it has none (``timed_plan``).

    None lies behind a split, where a plan may have no exits.
    """
    taken = {supernet.exit(choice.exit).position for choice in plan.exits}
    last = len(supernet.cut_points) if plan.split is None else plan.split.position
    places = {choice: supernet.exit(choice.exit).position for choice in timed_plan(supernet, plan.subnet).exits}
    further = [choice for choice, position in places.items() if position not in taken and position <= last]
    return with_timed_exits(plan, sorted([*plan.exits, *further], key=lambda one: supernet.exit(one.exit).position))


def without_timed_exits(plan: Plan) -> Plan:
    """``plan`` with the exits alone that samples leave by their confidence."""
    answering = tuple(choice for choice in plan.exits if choice.decides)
    return msgspec.structs.replace(plan, exits=answering)


def timed_plan(supernet: Supernet, subnet: Subnet) -> Plan:
    """``subnet`` with the most accurate exit of each cut point that it passes, as the packager judged them."""
    best: dict[int, Exit] = {}
    for exit_ in supernet.exits_along(subnet):
        known = best.get(exit_.position)
        if known is None or (exit_.accuracy or 0.0) > (known.accuracy or 0.0):
            best[exit_.position] = exit_
    choices = [ExitChoice(best[at].id, UNREACHABLE_CONFIDENCE, best[at].renditions[0].name) for at in sorted(best)]
    return with_timed_exits(Plan(subnet), choices)


DROPS = (0.0025, 0.01, 0.03)  # accuracy that exits may cost: a set of exits for each
_MEASURED_SAMPLES = 200
_PACED_SAMPLES = 40  # each waits before every call
_MEASURED_IN_PAGES = 20  # of which each call loads pages again


def placed_exits(answers: Answers, costs: CostModel, *, memory_bytes: int | None = None) -> list[int]:
    """Numbers of the exits that are kept in memory: accuracies and times are this device's own."""
    candidates = []
    for number, exit_ in enumerate(answers.exits):
        found = answers.at_exit(number, costs)
        size = costs.exit_bytes(found.choice)
        candidates.append(
            ExitCandidate(exit_.id, exit_.position, float(found.right.mean()), found.reach_ms, found.branch_ms, size)
        )
    kept = place(candidates, full_time=costs.latency_ms(answers.subnet), memory_bytes=memory_bytes).exits
    return [number for number, exit_ in enumerate(answers.exits) if exit_.id in kept]


def drops_within(max_drop: float | None) -> tuple[float, ...]:
    """The drops that are tried for exits under a goal: all without its own ``max_drop``, or else none beyond it.

    A subnet that seems more accurate than the full model on few samples is mostly a lucky one: it has no accuracy to
    spend on its exits (ADR 100).
    """
    return DROPS if max_drop is None else (max_drop, *(drop for drop in DROPS if drop < max_drop))


def exit_sets(answers: Answers, costs: CostModel, drops: Sequence[float] = DROPS) -> list[tuple[ExitChoice, ...]]:
    """Exits with thresholds for a subnet: one set for each accuracy that they may cost."""
    exits = [answers.at_exit(number, costs) for number in placed_exits(answers, costs)]
    right, sure, full_ms = answers.right(-1), answers.confidences(-1), costs.latency_ms(answers.subnet)
    found = [
        choose_exits(exits, right_at_end=right, confidence_at_end=sure, full_ms=full_ms, accuracy_drop=drop)
        for drop in drops
    ]
    return [one for one in dict.fromkeys(map(tuple, found)) if one]


def exit_choices(answers: Answers, costs: CostModel) -> list[ExitChoice]:
    """The exits of a subnet that are worth their memory and time, without thresholds."""
    return [answers.at_exit(number, costs).choice for number in placed_exits(answers, costs)]


def measured_in_turns(workspace: Workspace, plan: Plan, inputs: Inputs | Array) -> list[float]:
    """Mean latency at batch 1 of ``plan`` and of its subnet alone, sample by sample, in turns if both fit at once."""
    plans = [plan, Plan(plan.subnet).with_prior(plan.class_prior)]
    prints = [
        workspace.footprint(part.edges, part.exit) for each in plans for part in segments(workspace.supernet, each)
    ]
    if workspace.memory_cap_bytes is None or all_stay(prints, workspace.memory_cap_bytes):
        return _timed(workspace, plans, inputs, _MEASURED_SAMPLES)
    return [_timed(workspace, [each], inputs, _MEASURED_IN_PAGES)[0] for each in plans]


def paced_in_turns(
    workspace: Workspace, plans: Sequence[Plan], inputs: Inputs | Array, *, pause_s: float
) -> list[float]:
    """Mean latency at batch 1 of each plan, sample by sample, in turns, ``pause_s`` before each call."""
    return _timed(workspace, plans, inputs, _PACED_SAMPLES, pause_s=pause_s)


def _timed(
    workspace: Workspace, plans: Sequence[Plan], inputs: Inputs | Array, count: int, *, pause_s: float | None = None
) -> list[float]:
    """Mean latencies over the first ``count`` samples."""
    every = as_inputs(inputs)
    some = every.take(np.arange(min(count, len(inputs))), plans[0].subnet.input_size)
    loaded = [workspace.load_plan(plan) for plan in plans]

    def at_size(number: int) -> AtSize:
        return lambda positions, size: every.subset(np.array([number])).take(positions, size)

    try:
        return mean_latencies_ms(loaded, some, at_size=at_size, pause_s=pause_s)
    finally:
        for plan in loaded:
            plan.close()
