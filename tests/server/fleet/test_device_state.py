from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from device_sdk.logs.adaptation_log import Event, LogLine
from server.fleet.device_state import FAILURES, OVER_BUDGET, DeviceState, Seen, failure_of, kinds_of

AT = "2026-05-01T12:00:00.000+00:00"
CHOSEN = {
    "event": "plan_chosen",
    "plan_kind": "exits",
    "subnet": "o0 m1-4 o4",
    "optimise": "accuracy",
    "limits": {"latency_ms": 4.0},
    "considered": 9,
    "samples": 40,
    "accuracy": 0.9,
    "latency_ms": 5.0,
    "energy_mj": None,
    "bytes_sent": 0.0,
    "share_early": 0.5,
    "share_asked": 0.25,
    "share_abstained": 0.0,
    "notes": [],
}
FAILED = {
    "refused": {"version": 2, "digest": None, "reason": "self_test", "failure": "other answers"},
    "infeasible": {"budget_latency_ms": 1.0, "budget_memory_mb": None, "nearest": "o0", "nearest_latency_ms": 2.0},
    "delivered": {
        "how": "kept",
        "version": 1,
        "blobs_fetched": 0,
        "bytes_fetched": 0,
        "resumed": 0,
        "failure": "a blob is damaged",
    },
    "switch_failed": {"subnet": "o0", "failure": "no memory"},
    "searched": {"budget_latency_ms": 1.0, "drift_ratio": 1.0, "candidates": 0, "seconds": 1.0, "failure": "no time"},
    "escalating": {"answering": False, "failure": "refused"},
    "splitting": {"answering": False, "failure": "refused"},
    "resized": {
        "why": "failed",
        "old_cap_bytes": 1,
        "cap_bytes": 1,
        "available_bytes": 1,
        "exits": [],
        "ends_at": None,
        "failure": "no room",
    },
    "out_of_reach": {"budget_latency_ms": 1.0, "drift_ratio": 2.0, "fastest_ms": 1.5, "searching": True},
}


def event(fields):
    return msgspec.convert(fields, Event)


@pytest.fixture
def seen(log_line):
    """A line of a minute, as it was taken."""

    def build(minute, **changes):
        line = log_line(minute)
        fields = changes.pop("event", None)
        line = {**line, **({} if fields is None else {"event": fields}), **changes}
        return Seen(line["time"], AT, msgspec.convert(line, LogLine))

    return build


def folded(*lines):
    state = DeviceState("a", AT, AT)
    for line in lines:
        state = state.after(line)
    return state


def test_each_group_of_values_is_that_of_its_newest_line_in_any_order(seen, log_line):
    lines = [
        seen(1, event={**log_line(0, "adapted")["event"], "measured_ms": 3.0}),
        seen(2, event=CHOSEN),
        seen(3, event={"event": "switch_failed", **FAILED["switch_failed"]}),
        seen(4, event={"event": "opened", "subnet": "o0 o1", "restored": True}, bundle="f" * 64),
    ]
    states = {folded(*order) for order in permutations(lines)}
    assert len(states) == 1
    [state] = states
    assert (state.lines, state.bundle, state.line_time) == (4, "f" * 64, lines[3].time)
    assert (state.plan_kind, state.share_asked, state.latency_ms, state.budget_ms) == ("exits", 0.25, 5.0, 4.0)
    assert state.budget_use == 1.25
    assert (state.subnet, state.failure, state.failure_text) == ("o0 o1", "switch", "no memory")


def test_a_bundle_that_was_opened_anew_has_no_latency_yet(seen):
    state = folded(seen(1, event=CHOSEN), seen(2))
    assert (state.plan_kind, state.latency_ms, state.budget_use, state.share_asked) == ("initial", None, None, 0.0)


def test_of_lines_with_one_time_the_last_to_arrive_wins(seen):
    assert folded(seen(1, bundle="a"), seen(1, bundle="b")).bundle == "b"


@pytest.mark.parametrize("name", sorted(FAILED))
def test_every_kind_of_failure_is_known(name):
    failed = event({"event": name, **FAILED[name]})
    kind, text = failure_of(failed)
    assert kind in FAILURES
    assert text
    assert kinds_of(failed) == (kind,)


def test_kinds_of_failures_are_told_apart():
    kinds = {failure_of(event({"event": name, **fields}))[0] for name, fields in FAILED.items()}
    assert kinds == set(FAILURES)


@pytest.mark.parametrize("how", ["downloaded", "unchanged"])
def test_a_delivery_that_succeeds_is_no_failure(how):
    assert failure_of(event({"event": "delivered", **FAILED["delivered"], "how": how, "failure": None})) is None


@pytest.mark.parametrize(("measured_ms", "budget_ms", "over"), [(3, 2, True), (2, 2, False), (3, None, False)])
def test_a_plan_over_its_budget(log_line, measured_ms, budget_ms, over):
    fields = {"measured_ms": measured_ms, "budget_latency_ms": budget_ms}
    assert kinds_of(event({**log_line(0, "adapted")["event"], **fields})) == ((OVER_BUDGET,) if over else ())


def test_a_budget_of_nothing_is_none(seen, log_line):
    state = folded(seen(1, event={**log_line(0, "adapted")["event"], "budget_latency_ms": 0.0}))
    assert state.budget_use is None


def test_texts_are_cut_and_have_no_nul(seen):
    state = folded(seen(1, event={"event": "opened", "subnet": "\0o1 " * 5000, "restored": False}, bundle="b" * 500))
    assert len(state.subnet) == 400
    assert "\0" not in state.subnet
    assert len(state.bundle) == 64
