from __future__ import annotations

from dataclasses import replace

from device_sdk.execution.open_homes import OpenHomes
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.plan_homes import at_home, plans_at_each_home
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import Cascade, MaxConfidence, Plan, RemoteRef, Split, Subnet

HOMES = (Home("cpu", 1), Home("cpu", 2), Home("cpu", 4))


def workspace_with(bundle, runtime, homes=HOMES, **refused):
    return replace(Workspace(bundle, runtime), homes=OpenHomes(homes, refused))


def homes_of(plan):
    return {edge.home for subnet in (plan.subnet, *filter(None, [plan.second])) for edge in subnet.edges}


def test_a_plan_is_moved_to_each_home_but_its_own(bundle, runtime):
    plan = Plan(bundle.supernet.original)
    moved = plans_at_each_home(workspace_with(bundle, runtime), plan, None)
    assert [homes_of(one) for one in moved] == [{"cpu-2t"}, {"cpu-4t"}]
    assert [one.subnet.block_ids for one in moved] == [plan.subnet.block_ids] * 2


def test_a_plan_over_several_homes_may_also_move_to_the_first(bundle, runtime):
    mixed = Subnet(tuple(edge.on("cpu-2t" if at else "") for at, edge in enumerate(bundle.supernet.original.edges)))
    moved = plans_at_each_home(workspace_with(bundle, runtime), Plan(mixed), 2)
    assert [homes_of(one) for one in moved] == [{""}, {"cpu-2t"}]


def test_both_paths_of_a_cascade_move_together(bundle, runtime):
    cascade = Cascade(MaxConfidence(0.5), bundle.supernet.original)
    moved = plans_at_each_home(workspace_with(bundle, runtime), Plan(bundle.supernet.original, hard=cascade), 2)
    assert [homes_of(one) for one in moved] == [{"cpu-2t"}]


def test_a_home_that_refuses_a_block_is_left_out(bundle, runtime):
    plan = Plan(bundle.supernet.original)
    workspace = workspace_with(bundle, runtime, **{"cpu-2t": frozenset({str(plan.subnet.edges[0])})})
    assert [homes_of(one) for one in plans_at_each_home(workspace, plan, None)] == [{"cpu-4t"}]


def test_one_home_and_splits_leave_no_choice(bundle, runtime):
    plan = Plan(bundle.supernet.original)
    assert plans_at_each_home(workspace_with(bundle, runtime, HOMES[:1]), plan, None) == []
    split = Plan(bundle.supernet.original, split=Split(1, (8,), (), RemoteRef("there")))
    assert plans_at_each_home(workspace_with(bundle, runtime), split, None) == []


def test_the_first_home_has_no_name(bundle):
    plan = Plan(bundle.supernet.original)
    assert at_home(at_home(plan, "cpu-2t"), "") == plan
