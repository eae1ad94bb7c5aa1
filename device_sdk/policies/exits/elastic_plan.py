"""Reduction of a plan when memory shrinks (MEEdge §3.4), decided by the footprints of its parts. Pure.

1. Exits that only deadlines need stay as far as there is room beside all others, by placement. 2. What does not fit at
once runs in pages, with the same answers. 3. If the largest block does not even fit alone, the path ends with the last
exit up to which everything stays loaded, or else with the last that fits at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BudgetError
from device_sdk.execution.pager import all_stay
from device_sdk.execution.paging import all_pages_stay, least_memory_cap_bytes, one_model_footprint
from device_sdk.execution.plan_segments import PlanSegment, answering_exits, segments, steps
from device_sdk.policies.placement import place
from device_sdk.policies.placement.candidates import ExitCandidate
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import AnswerLocally, ExitChoice, Plan


def plan_within(bundle: Bundle, plan: Plan, cap_bytes: int | None) -> Plan:
    """``plan``, or the part of it that fits under the cap.

    Raises:
        BudgetError: not even the path to the first exit fits; says the least that works.
    """
    if cap_bytes is None:
        return plan
    kept = _with_exits_that_stay(bundle, plan, cap_bytes)
    if least_memory_cap_bytes(bundle, kept) <= cap_bytes:
        return kept
    shorter = [_ending_with(plan, choice) for choice in reversed(plan.exits)]
    fitting = [one for one in shorter if least_memory_cap_bytes(bundle, one) <= cap_bytes]
    staying = [one for one in fitting if all_pages_stay(bundle, _forms(bundle, one), cap_bytes)]
    if fitting:
        return (staying or fitting)[0]
    least = least_plan_bytes(bundle, plan)
    raise BudgetError(
        f"a memory cap of {cap_bytes / MB:.2f} MB is too small for any part of the plan",
        hint=f"allow at least {-(-least // 10_000) / 100:.2f} MB",
    )


def least_plan_bytes(bundle: Bundle, plan: Plan) -> int:
    """The least cap under which any part of ``plan`` that answers runs."""
    parts = [
        msgspec.structs.replace(plan, exits=answering_exits(plan)),
        *(_ending_with(plan, choice) for choice in plan.exits),
    ]
    return min(least_memory_cap_bytes(bundle, one) for one in parts)


def whole_plan_bytes(bundle: Bundle, plan: Plan) -> int:
    """The least cap under which all of ``plan`` stays loaded as it is without a cap, every exit included."""
    low, high = 0, 1
    parts = [one for found in _forms(bundle, plan) for one in found if one.runs]
    prints = [one_model_footprint(bundle, one.edges, one.exit) for one in parts]
    while not all_stay(prints, high):
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if all_stay(prints, middle) else (middle, high)
    return high


def _forms(bundle: Bundle, plan: Plan) -> list[list[PlanSegment]]:
    """Lists of segments that are loaded for a plan: the ordinary one, and that of its steps if it differs."""
    ordinary, stepped = segments(bundle.supernet, plan), steps(bundle.supernet, plan)
    return [ordinary] if stepped == ordinary else [ordinary, stepped]


def _with_exits_that_stay(bundle: Bundle, plan: Plan, cap_bytes: int) -> Plan:
    """``plan`` without those exits for deadlines alone that would have pages loaded again and again."""
    answering = answering_exits(plan)
    timed = [choice for choice in plan.exits if choice not in answering]
    candidates, full_macs = _candidates(bundle, plan, timed)
    limit_bytes: int | None = None
    found = plan
    while any(choice in timed for choice in found.exits):
        if all_pages_stay(bundle, _forms(bundle, found), cap_bytes):
            return found
        placed = place(candidates, full_time=full_macs, memory_bytes=limit_bytes)
        limit_bytes = max(0, placed.memory_bytes - 1)
        exits = tuple(one for one in plan.exits if one not in timed or one.exit in placed.exits)
        found = msgspec.structs.replace(plan, exits=exits)
    return found


def _candidates(bundle: Bundle, plan: Plan, exits: Sequence[ExitChoice]) -> tuple[list[ExitCandidate], float]:
    """Exits as placement takes them, timed in MACs; without a measured accuracy the later one counts as the better."""
    supernet = bundle.supernet
    reached = {}
    total = 0
    for _, block in supernet.walk(plan.subnet):
        total += block.macs
        reached[block.end] = total
    candidates = []
    for choice in exits:
        exit_ = supernet.exit(choice.exit)
        accuracy = exit_.position / supernet.output_index if exit_.accuracy is None else exit_.accuracy
        size = one_model_footprint(bundle, (), choice).resident_bytes
        reach = float(reached[exit_.position])
        candidates.append(ExitCandidate(exit_.id, exit_.position, accuracy, reach, float(exit_.macs), size))
    return candidates, float(max(total, 1))


def _ending_with(plan: Plan, last: ExitChoice) -> Plan:
    """The path up to ``last``, which answers everything: nothing behind it is loaded, and no server is asked."""
    before = [choice.without_asking() for choice in plan.exits[: plan.exits.index(last)]]
    end = msgspec.structs.replace(last, threshold=0.0, ask_below=0.0)
    exits = (*(choice for choice in before if choice.decides), end)
    return msgspec.structs.replace(plan, exits=exits, split=None, hard=AnswerLocally())
