"""Exits that a plan has for deadlines and interruptions alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from device_sdk.supernet.blocks import Exit
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
