from __future__ import annotations

from device_sdk.policies.exits.placed_exits import with_further_exits, without_timed_exits
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Plan, RemoteRef, Split


def positions(supernet, plan):
    return [supernet.exit(choice.exit).position for choice in plan.exits]


def test_exits_that_answer_by_confidence_stay_and_those_for_deadlines_come_between(bundle):
    plan = Plan(bundle.supernet.original, (ExitChoice("x2-pooled", 0.75),))
    found = with_further_exits(bundle.supernet, plan)
    assert positions(bundle.supernet, found) == [1, 2, 3]
    assert found.exits[1] == plan.exits[0]
    assert {found.exits[0].threshold, found.exits[2].threshold} == {UNREACHABLE_CONFIDENCE}
    assert without_timed_exits(found) == plan


def test_no_exit_for_deadlines_lies_behind_a_split(bundle):
    supernet = bundle.supernet
    path = supernet.original.edges
    for position in (0, 2):
        split = Split(position, (8,), path[position:], RemoteRef("server"))
        found = with_further_exits(supernet, Plan(supernet.original, split=split))
        assert positions(supernet, found) == [*range(1, position + 1)]
        supernet.check_plan(found)
