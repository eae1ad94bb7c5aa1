from __future__ import annotations

import json

import msgspec
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
    decode_plan,
    encode_plan,
)

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
ASKS_EARLY = Plan(SUBNET, exits=(ExitChoice("x1", 0.9, ask_below=0.25),), hard=Ask(MaxConfidence(0.7), SERVER))


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_of_each_kind_survives_the_round_trip_byte_for_byte(kind):
    plan = PLANS[kind]
    assert plan.kind == kind
    assert decode_plan(encode_plan(plan)) == plan
    assert encode_plan(decode_plan(encode_plan(plan))) == encode_plan(plan)


def test_what_an_exit_asks_about_is_written_and_0_where_it_is_left_out():
    assert decode_plan(encode_plan(ASKS_EARLY)) == ASKS_EARLY
    assert b'"ask_below":0.25' in encode_plan(ASKS_EARLY)
    without = encode_plan(ASKS_EARLY).replace(b',"ask_below":0.25', b"")
    assert [choice.ask_below for choice in decode_plan(without).exits] == [0.0]
    assert b'"ask_below":0.0' in encode_plan(PLANS["exits"])


def test_the_coding_of_a_split_is_written_only_where_it_is_set():
    split = PLANS["split"].split
    assert b"per_channel" not in encode_plan(PLANS["split"])
    assert b"compress" not in encode_plan(PLANS["split"])
    assert b'"fallback":"subnet"' in encode_plan(PLANS["split"]), "every other field is always written"
    coded = Plan(SUBNET, split=msgspec.structs.replace(split, per_channel=True, compress=True))
    assert b'"per_channel":true,"compress":true' in encode_plan(coded)
    assert decode_plan(encode_plan(coded)) == coded
    stated = encode_plan(PLANS["split"]).replace(b'"fallback"', b'"compress":false,"fallback"')
    assert decode_plan(stated) == PLANS["split"]


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
        ({"exits": [{"exit": "x1", "threshold": 0.9, "ask_below": "0.5"}]}, "ask_below"),
        ({"exits": [{"exit": "x1", "threshold": 0.9, "ask_below": None}]}, "ask_below"),
        ({"split": {"position": 1, "bits": [8], "tail": [], "server": {}, "codec": "zip"}}, "codec"),
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
