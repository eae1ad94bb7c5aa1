from __future__ import annotations

import json

import pytest

from device_sdk.errors import UsageError
from device_sdk.supernet.plan import (
    Abstain,
    Ask,
    Edge,
    Entropy,
    ExitChoice,
    Margin,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
    Subnet,
)
from device_sdk.supernet.plan_json import decode_plan, encode_plan

SUBNET = Subnet((Edge("o0"), Edge("o1", "int8"), Edge("o2")))
SERVER = RemoteRef("big", "ab" * 32)
TAIL = (Edge("o1"), Edge("o2"))
PLANS = {
    "subnet": Plan(SUBNET),
    "exits": Plan(SUBNET, exits=(ExitChoice("x1", 0.9),)),
    "split": Plan(SUBNET, split=Split(1, (8,), TAIL, SERVER)),
    "remote": Plan(SUBNET, split=Split(0, (8,), (Edge("o0"), *TAIL), SERVER)),
    "ask": Plan(SUBNET, hard=Ask(Entropy(0.5), SERVER)),
    "exits + ask": Plan(SUBNET, exits=(ExitChoice("x1", 0.9),), hard=Ask(MaxConfidence(0.7), SERVER, 1, TAIL)),
    "abstain": Plan(SUBNET, hard=Abstain(Margin(0.2))),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_of_each_kind_survives_the_round_trip_byte_for_byte(kind):
    plan = PLANS[kind]
    assert plan.kind == kind
    assert decode_plan(encode_plan(plan)) == plan
    assert encode_plan(decode_plan(encode_plan(plan))) == encode_plan(plan)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 1}, "format 1"),
        ({"format": None}, "format None"),
        ({"hard": {"kind": "pray"}}, "pray"),
        ({"hard": {"kind": "abstain", "decider": {"kind": "oracle", "threshold": 1.0}}}, "oracle"),
        ({"escalation": {"threshold": 0.5}}, "escalation"),
        ({"hard": {"kind": "answer", "loudly": True}}, "loudly"),
        ({"subnet": {"edges": [{"block": "o0", "precision": 4}]}}, "precision"),
    ],
)
def test_what_this_sdk_does_not_know_is_refused_never_dropped(change, said):
    found = json.loads(encode_plan(PLANS["subnet"])) | change
    with pytest.raises(UsageError, match=said) as caught:
        decode_plan(json.dumps(found).encode())
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"[]", b"nonsense", b'{"subnet": {"edges": []}, "exits": []}'])
def test_what_is_no_plan_or_one_of_the_first_format_is_refused(data):
    with pytest.raises(UsageError):
        decode_plan(data)
