"""Exits of a subnet: which are worth their memory and time, with which thresholds, and what they save when measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.execution.paging_plan import all_stay
from device_sdk.execution.plan_segments import segments
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import Answers
from device_sdk.policies.deciding.thresholds import choose_exits
from device_sdk.policies.placement import ExitCandidate, place
from device_sdk.profiling.plans import mean_latencies_ms
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import ExitChoice, Plan

DROPS = (0.0025, 0.01, 0.03)  # accuracy that exits may cost: a set of exits for each
_MEASURED_SAMPLES = 200
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


def exit_sets(answers: Answers, costs: CostModel, drops: Sequence[float] = DROPS) -> list[tuple[ExitChoice, ...]]:
    """Exits with thresholds for a subnet: one set for each accuracy that they may cost."""
    exits = [answers.at_exit(number, costs) for number in placed_exits(answers, costs)]
    right, full_ms = answers.right(-1), costs.latency_ms(answers.subnet)
    found = [choose_exits(exits, right_at_end=right, full_ms=full_ms, accuracy_drop=drop) for drop in drops]
    return [one for one in dict.fromkeys(map(tuple, found)) if one]


def exit_choices(answers: Answers, costs: CostModel) -> list[ExitChoice]:
    """The exits of a subnet that are worth their memory and time, without thresholds."""
    return [answers.at_exit(number, costs).choice for number in placed_exits(answers, costs)]


def measured_with_exits(workspace: Workspace, plan: Plan, inputs: Inputs | Array) -> list[float]:
    """Mean latency at batch 1 with the plan's exits and without, sample by sample, in turns if both fit at once."""
    plans = [plan, Plan(plan.subnet).with_prior(plan.class_prior)]
    prints = [
        workspace.footprint(part.edges, part.exit) for each in plans for part in segments(workspace.supernet, each)
    ]
    if workspace.memory_cap_bytes is None or all_stay(prints, workspace.memory_cap_bytes):
        return _timed(workspace, plans, inputs, _MEASURED_SAMPLES)
    return [_timed(workspace, [each], inputs, _MEASURED_IN_PAGES)[0] for each in plans]


def _timed(workspace: Workspace, plans: Sequence[Plan], inputs: Inputs | Array, count: int) -> list[float]:
    """Mean latencies over the first ``count`` samples."""
    some = as_inputs(inputs).take(np.arange(min(count, len(inputs))), plans[0].subnet.input_size)
    loaded = [workspace.load_plan(plan) for plan in plans]
    try:
        return mean_latencies_ms(loaded, some)
    finally:
        for plan in loaded:
            plan.close()
