from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import BudgetError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.paging import least_memory_cap_bytes
from device_sdk.execution.running_calls import MemoryCap
from device_sdk.policies.exits.elastic_plan import least_plan_bytes, plan_within, whole_plan_bytes
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import (
    ANY_SERVER,
    UNREACHABLE_CONFIDENCE,
    Ask,
    ExitChoice,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
)

MB = 1_000_000


def inputs_of(bundle):
    return np.zeros((1, *bundle.supernet.cut_points[0].tensors[0].shape), np.float32)


@pytest.fixture(scope="module")
def plan(elastic_heavy):
    """Two exits that only deadlines need: behind a small block and behind two large ones."""
    exits = tuple(ExitChoice(name, UNREACHABLE_CONFIDENCE) for name in ("x1", "x3"))
    return Plan(elastic_heavy.supernet.original, exits)


def names(plan):
    return [choice.exit for choice in plan.exits]


def test_without_a_cap_or_with_room_it_is_the_plan(elastic_heavy, plan):
    assert plan_within(elastic_heavy, plan, None) == plan
    whole = whole_plan_bytes(elastic_heavy, plan)
    assert plan_within(elastic_heavy, plan, whole) == plan
    loaded = LoadedPlan(elastic_heavy, OnnxRuntime(threads=1, lean=True), plan, memory_cap_bytes=whole)
    loaded.stepped()
    assert loaded.page_loads == 1  # the whole path in one page


def test_exits_for_deadlines_alone_stay_only_where_nothing_has_to_be_loaded_again(elastic_heavy, plan):
    least, whole = (one(elastic_heavy, Plan(plan.subnet)) for one in (least_memory_cap_bytes, whole_plan_bytes))
    found = {cap_bytes: plan_within(elastic_heavy, plan, cap_bytes) for cap_bytes in range(whole, least, -250_000)}
    assert found[whole] == plan
    assert list(found.values())[-1] == Plan(plan.subnet)
    for cap_bytes, kept in found.items():
        if kept.exits:
            loaded = LoadedPlan(
                elastic_heavy,
                OnnxRuntime(threads=1, lean=True),
                kept,
                memory_cap_bytes=cap_bytes,
                cap=MemoryCap(cap_bytes),
            )
            for _ in range(2):
                loaded.run(inputs_of(elastic_heavy))
                loaded.stepped().run_through(inputs_of(elastic_heavy))
                pages = [one.taken_bytes for one in loaded._every_loaded]
                assert all(pages)
            loaded.close()


def test_exits_that_answer_by_confidence_stay_as_long_as_their_blocks_run(elastic_heavy, plan):
    taken = Plan(plan.subnet, (plan.exits[0], ExitChoice("x3", 0.9)))
    least = least_memory_cap_bytes(elastic_heavy, Plan(plan.subnet, taken.exits[1:]))
    assert names(plan_within(elastic_heavy, taken, least)) == ["x3"]


def test_below_the_largest_block_the_path_ends_with_the_last_exit_before_it(elastic_heavy, plan):
    least = least_memory_cap_bytes(elastic_heavy, Plan(plan.subnet))
    assert plan_within(elastic_heavy, plan, least) == Plan(plan.subnet)
    found = plan_within(elastic_heavy, plan, least - 1)
    assert found.exits == (ExitChoice("x1", 0.0),)
    assert least_plan_bytes(elastic_heavy, plan) < least - 1


def test_exits_that_only_ask_stay_with_their_plan_and_leave_where_nothing_follows_the_last_exit(elastic_heavy, plan):
    asks = ExitChoice("x1", UNREACHABLE_CONFIDENCE, ask_below=0.5)
    asking = Plan(plan.subnet, (asks, plan.exits[1]), hard=Ask(MaxConfidence(0.5), ANY_SERVER))
    least = least_memory_cap_bytes(elastic_heavy, Plan(plan.subnet, (asks,), hard=asking.hard))
    assert names(plan_within(elastic_heavy, asking, least)) == ["x1"]
    assert plan_within(elastic_heavy, asking, least).exits[0].ask_below == 0.5
    cut_short = plan_within(elastic_heavy, asking, least_memory_cap_bytes(elastic_heavy, Plan(plan.subnet)) - 1)
    assert cut_short == Plan(plan.subnet, (ExitChoice("x1", 0.0),))
    elastic_heavy.supernet.check_plan(cut_short)


def test_a_cap_below_everything_says_the_least(elastic_heavy, plan):
    least = least_plan_bytes(elastic_heavy, plan)
    assert plan_within(elastic_heavy, plan, least).exits[-1].exit == "x1"
    with pytest.raises(BudgetError, match="too small for any part") as caught:
        plan_within(elastic_heavy, plan, least - 1)
    allowed = float(caught.value.hint.split()[-2])
    assert allowed * MB >= least
    without = Plan(plan.subnet)
    with pytest.raises(BudgetError):
        plan_within(elastic_heavy, without, least)


def test_the_exit_that_stands_in_for_a_server_stays_and_a_head_ends_with_it_at_last(elastic_heavy):
    subnet = elastic_heavy.supernet.original
    split = Split(3, (8,), subnet.edges[3:], RemoteRef("heavy:tail"), "exit")
    plan = Plan(subnet, (ExitChoice("x1", UNREACHABLE_CONFIDENCE), ExitChoice("x3", UNREACHABLE_CONFIDENCE)), split)
    whole, least = whole_plan_bytes(elastic_heavy, plan), least_plan_bytes(elastic_heavy, plan)
    assert whole < whole_plan_bytes(elastic_heavy, Plan(subnet))
    for cap_bytes in range(least, whole + 1, (whole - least) // 12):
        kept = plan_within(elastic_heavy, plan, cap_bytes)
        elastic_heavy.supernet.check_plan(kept)
        assert kept.split is None or kept.exits[-1] == plan.exits[-1]
    with pytest.raises(BudgetError):
        plan_within(elastic_heavy, plan, least - 1)
