"""What a rollout does next, by state, counts and time alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from device_sdk.logs.adaptation_log import Escalating, OutOfReach, Profiled
from server.errors import UnprocessableError
from server.rollouts.cohorts import is_in_second_half, stage_of
from server.rollouts.decisions import (
    Rollout,
    Step,
    approved,
    assign,
    findings,
    halted,
    next_step,
    reversal,
    waits_for_approval,
)
from server.rollouts.evidence import Counts
from server.rollouts.plan import Limits, Plan, Stage, check_plan
from server.rollouts.signals import Member, counted, difference, values_of

START = datetime(2026, 5, 1, 12, tzinfo=UTC)
LATER = START + timedelta(minutes=61)
STAGES = (Stage(percent=1), Stage(percent=10), Stage(percent=100))


def rollout(*, state="running", stage=0, stages=STAGES, **plan):
    return Rollout(7, "tiny", 2, 1, Plan(stages, **plan), "salt", state, stage, START, START)


def summed(members):
    """The counts of some devices."""
    return list(growing(members))[-1] if members else {}


def growing(members):
    """The counts after each device."""
    total = {}
    for one in members:
        for key, counts in difference({}, counted(one)).items():
            before = total.get(key, Counts())
            parts = zip(astuple(counts), astuple(before), strict=True)
            total[key] = Counts(*(a + b for a, b in parts))
        yield total


def alarm(members, *, every):
    """The number of devices at the first look that halts, one after ``every`` few devices; None if none does."""
    for number, counts in enumerate(growing(members), start=1):
        if number % every == 0 and next_step(rollout(), counts, START, on_new=1) is not None:
            return number
    return None


def good(count, **tags):
    return [Member(2, 0, tags, tried=True) for _ in range(count)]


def failing(count, **tags):
    return [Member(2, 0, tags).with_refusal("self_test") for _ in range(count)]


def step(one, members, now=START, on_new=1):
    return next_step(one, summed(members), now, on_new=on_new)


# Who


def test_a_device_is_in_the_same_stage_always_and_stages_grow():
    devices = [f"device-{number}" for number in range(20_000)]
    found = Counter(stage_of(Plan(STAGES), "salt", one, {}) for one in devices)
    assert found[None] == 0
    for stage, share in ((0, 0.01), (1, 0.09), (2, 0.9)):
        assert found[stage] / len(devices) == pytest.approx(share, abs=0.006)
    again = Counter(stage_of(Plan(STAGES), "salt", one, {"region": "eu"}) for one in devices)
    other = Counter(
        stage_of(Plan(STAGES), "other", one, {}) == 0 for one in devices if stage_of(Plan(STAGES), "salt", one, {}) == 0
    )
    assert again == found
    assert other[True] < other[False]  # another rollout begins with other devices


def test_stages_choose_by_all_tags_and_by_name():
    plan = Plan(
        (Stage(devices=("mine",)), Stage(percent=100, tags={"region": "eu", "board": "orin"}), Stage(percent=0.01))
    )
    assert stage_of(plan, "salt", "mine", {}) == 0
    assert stage_of(plan, "salt", "a", {"region": "eu", "board": "orin", "more": "x"}) == 1
    assert stage_of(plan, "salt", "a", {"region": "eu"}) is None


def test_halves_are_halves_of_every_stage():
    devices = [f"d{number}" for number in range(20_000)]
    first = [one for one in devices if stage_of(Plan(STAGES), "salt", one, {}) == 1]
    assert np.mean([is_in_second_half("salt", one) for one in first]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("stage", [Stage(), Stage(tags={"a": "b"}), Stage(percent=1, tags={"a": "b c"})])
def test_a_stage_that_can_add_nobody_is_refused(stage):
    with pytest.raises(UnprocessableError, match="stage 0"):
        check_plan(Plan((stage,)))


# Which version


MINE = "device-of-stage-0"


@pytest.fixture
def stages():
    return (Stage(devices=(MINE,)), Stage(percent=100))


@pytest.mark.parametrize(
    ("standing", "stage", "got", "version", "rollback"),
    [
        ("planned", 0, None, 1, False),
        ("running", 0, None, 2, False),
        ("paused", 0, None, 1, False),
        ("paused", 0, 2, 2, False),
        ("reversing", 0, 2, 1, True),
        ("reversed", 0, 2, 1, True),
        ("reversed", 0, None, 1, True),
        ("done", 1, None, 2, False),
    ],
)
def test_the_version_of_a_device_of_the_first_stage(stages, standing, stage, got, version, rollback):
    member = None if got is None else Member(got, 0)
    found = assign(rollout(state=standing, stage=stage, stages=stages), member, MINE, {})
    assert (found.version, found.rollback, found.rollout) == (version, rollback, 7)


def test_a_device_of_a_later_stage_waits(stages):
    assert assign(rollout(stages=stages), None, "other", {}).version == 1
    assert assign(rollout(stages=stages, stage=1), None, "other", {}).version == 2


def test_a_device_that_got_the_version_keeps_it_when_its_tags_change():
    one = rollout(stages=(Stage(percent=100, tags={"region": "eu"}),))
    assert assign(one, Member(2, 0), "a", {"region": "us"}).version == 2


def test_a_device_on_which_it_does_not_work_is_not_offered_it_again(stages):
    assert assign(rollout(stages=stages), failing(1)[0], MINE, {}).version == 1
    assert assign(rollout(stages=stages, state="done"), failing(1)[0], MINE, {}).version == 1


def test_without_a_rollback_devices_that_have_it_keep_it(stages):
    one = rollout(stages=stages, state="reversed", no_rollback=True)
    assert (assign(one, Member(2, 0), MINE, {}).version, assign(one, None, MINE, {}).version) == (2, 1)


def test_a_comparison_gives_each_half_its_version():
    one = rollout(stages=(Stage(percent=100),), against=1)
    found = Counter(assign(one, None, f"d{number}", {}).version for number in range(2000))
    assert found[1] / 2000 == pytest.approx(0.5, abs=0.04)
    assert found[1] + found[2] == 2000


# What next


def test_a_stage_ends_when_its_time_is_over_and_enough_devices_have_reported():
    stages = tuple(replace_stage(one, min_devices=5) for one in STAGES)
    one = rollout(stages=stages)
    assert step(one, good(9), START + timedelta(minutes=59)) is None
    assert step(one, good(4), LATER) is None
    assert step(one, good(5), LATER) == Step("running", 1)
    assert step(replace(one, stage=2), good(5), LATER) == Step("done", 2)


def replace_stage(stage, **changes):
    return msgspec.structs.replace(stage, **changes)


def test_an_operators_stage_waits_and_so_does_the_end_of_what_is_not_for_all():
    asked = rollout(stages=(STAGES[0], replace_stage(STAGES[2], approval="operator")))
    assert step(asked, good(9), LATER) is None
    assert waits_for_approval(asked, LATER)
    assert not waits_for_approval(asked, START)
    assert approved(asked) == Step("running", 1)
    for partial in (rollout(stages=STAGES[:1]), rollout(stages=STAGES[2:], against=1)):
        assert step(partial, good(9), LATER) is None
        assert waits_for_approval(partial, LATER)
        assert approved(partial) == Step("done", 0)


def test_one_device_never_halts_whatever_it_reports():
    liar = failing(1)[0].with_refusal("signature")
    for event in (OutOfReach(1.0, 1.0, 1.0, False), Escalating(False, "x"), Profiled(1e9, 1.0, 0.0, 0.0)):
        liar = liar.with_event(event)
    for others in (0, 1, 10, 500):
        assert step(rollout(), [*good(others), liar]) is None
        assert step(rollout(), [*good(others), liar], LATER) == Step("running", 1)


def test_a_second_device_that_fails_its_self_test_halts():
    for devices in (5, 20, 60):
        found = step(rollout(), [*good(devices - 2), *failing(2)])
        assert found.state == "reversing"
        assert found.why == f"self_test: 2 of {devices} devices, the limit is 0.05%"
    assert step(rollout(on_halt="pause"), [*good(20), *failing(2)]).state == "paused"


def test_failures_that_are_not_certain_stop_the_next_stage_only():
    members = [*good(400), *failing(2)]
    one = rollout()
    assert step(one, members) is None
    assert step(one, members, LATER).state == "paused"


def test_transfers_that_fail_say_nothing_about_a_version():
    members = [Member(2, 0).with_refusal(reason) for reason in ("transfer", "storage")] * 50
    assert not summed(members)


def test_a_limit_that_is_none_is_not_looked_at():
    assert step(rollout(limits=Limits(self_test=None)), failing(50)) is None


def measured(count, factor, *, seed=1, noise=0.1, version=2, **tags):
    """Devices whose full model takes ``factor`` times as long as on the version before."""
    random = np.random.default_rng(seed)
    changes = np.log(factor) + noise * random.standard_normal(count)
    return [
        Member(version, 0, tags, tried=True, values={"model_ms": 3.0 + one}, before={"model_ms": 3.0})
        for one in changes
    ]


def test_a_version_that_is_slower_on_one_tag_halts_by_that_tag():
    members = [*measured(45, 1.0, board="pi"), *measured(16, 1.3, board="orin", seed=2)]
    found = step(rollout(), members)
    assert found.state == "reversing"
    assert "model_ms" in found.why
    assert "board=orin" in found.why
    assert step(rollout(), measured(61, 1.0, board="pi")) is None


def test_groups_are_compared_where_devices_were_not_measured_before():
    random = np.random.default_rng(3)

    def group(version, shift, count):
        values = shift + 0.1 * random.standard_normal(count)
        return [Member(version, 0 if version == 2 else None, {}, tried=True, values={"latency": one}) for one in values]

    assert step(rollout(), [*group(2, 0.3, 40), *group(1, 0.0, 200)]).state == "reversing"
    assert step(rollout(), [*group(2, 0.0, 40), *group(1, 0.0, 200)]) is None


def test_accuracy_that_falls_halts_and_one_that_rises_does_not():
    def devices(change):
        random = np.random.default_rng(4)
        changes = change + 0.02 * random.standard_normal(60)
        return [
            Member(2, 0, {}, tried=True, values={"accuracy": 0.8 + one}, before={"accuracy": 0.8}) for one in changes
        ]

    found = step(rollout(), devices(-0.06))
    assert found.why.startswith("accuracy")
    assert step(rollout(), devices(+0.06)) is None


def test_a_server_that_is_away_for_all_versions_halts_none():
    def away(version, count, of):
        bad = [Member(version, 0, {}, tried=True, flags=("fallback",))] * count
        return [*bad, *([Member(version, 0, {}, tried=True)] * (of - count))]

    assert step(rollout(), [*away(2, 30, 60), *away(1, 100, 200)]) is None
    assert step(rollout(), [*away(2, 30, 60), *away(1, 2, 200)]).state == "reversing"


def test_good_versions_are_halted_as_seldom_as_promised_over_all_signals_and_tags():
    """Looks after every few devices, in four groups of boards, at the limit of what may rise."""
    random, halts, runs = np.random.default_rng(8), 0, 60
    for _ in range(runs):
        boards = random.integers(0, 4, 120)
        members = [
            Member(2, 0, {"board": f"b{board}"}, tried=True, values={"model_ms": 3 + change}, before={"model_ms": 3.0})
            for board, change in zip(boards, np.log(1.1) + 0.1 * random.standard_normal(120), strict=True)
        ]
        halts += alarm(members, every=10) is not None
    assert halts / runs <= 0.05


def test_a_faulty_release_is_halted_at_a_small_share_of_two_thousand_devices():
    """The share at the halt, for a release that fails on 5 % of devices and one that is slower on a quarter."""
    random = np.random.default_rng(9)
    failed, slow = [], []
    for _ in range(30):
        is_bad = random.random(200) < 0.05
        events = np.cumsum(is_bad)
        failed.append(next(n for n in range(1, 201) if step_of_failures(n, int(events[n - 1]))) / 2000)
        boards = random.integers(0, 4, 120)
        members = [
            Member(2, 0, {"board": f"b{board}"}, tried=True, values={"model_ms": 3 + change}, before={"model_ms": 3.0})
            for board, change in zip(
                boards, 0.08 * random.standard_normal(120) + np.where(boards == 0, 0.262, 0), strict=True
            )
        ]
        slow.append((alarm(members, every=5) or 2000) / 2000)
    assert np.median(failed) <= 0.03
    assert np.median(slow) <= 0.03


def step_of_failures(devices, events):
    counts = {(2, "", "self_test"): Counts(devices, events)}
    return next_step(rollout(), counts, START, on_new=1) is not None


def test_reversing_ends_when_no_device_has_the_version():
    one = rollout(state="reversing")
    assert step(one, [], on_new=3) is None
    assert step(one, [], on_new=0).state == "reversed"
    assert reversal(rollout(no_rollback=True), "x").state == "reversed"
    assert halted(rollout(no_rollback=True), "x").why.endswith("devices that have it keep it")


@pytest.mark.parametrize("standing", ["planned", "paused", "reversed", "done"])
def test_no_signal_moves_a_rollout_that_does_not_run(standing):
    assert step(rollout(state=standing), failing(100), LATER) is None


# Signals


def test_a_device_counts_once_and_what_it_changes_is_added():
    before, after = good(1, region="eu")[0], failing(1, region="eu")[0]
    assert difference(counted(before), counted(before)) == {}
    changes = difference(counted(before), counted(after))
    assert {key: one.events for key, one in changes.items()} == {
        (2, "", "self_test"): 1,
        (2, "region=eu", "self_test"): 1,
    }
    assert all(one.devices == 0 for one in changes.values())
    assert after.with_refusal("self_test") == after


def test_values_are_finite_and_bounded():
    assert values_of(Profiled(0.0, 1.0, 0.0, 0.0)) == {}
    assert values_of(Profiled(-1.0, 1.0, 0.0, 0.0)) == {}
    huge = Member(2, 0, {}, tried=True, values={"model_ms": 27.0}, before={"model_ms": 0.0})
    assert counted(huge)[(2, "", "model_ms_change")].total == pytest.approx(np.log(4))


def test_findings_name_intervals_around_their_values():
    found = findings(rollout(), summed([*measured(40, 1.2, board="pi"), *failing(2)]))
    assert {one.signal for one in found} == {"self_test", "refused", "fallback", "out_of_reach", "model_ms"}
    assert {one.tag for one in found} == {"", "board=pi"}
    for one in found:
        assert one.low <= one.value <= one.high
    needed = [one.needed for one in found if one.signal == "self_test"]
    assert all(a <= b for a, b in pairwise(needed))  # a tag needs more
