from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.files.untrusted_json import decode_json
from device_sdk.supernet.plan import Plan, Subnet


def test_a_value_is_decoded_and_unknown_fields_are_ignored():
    assert decode_json(b'{"subnet": {"edges": [], "x": 1}, "later": [{}]}', Plan) == Plan(Subnet(()))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b'{"subnet": 1}', "Expected `object`"),
        (b'{"subnet": {"edges": [{"block": "\xff"}]}}', "utf-8"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
        (b'{"split": {"position": ' + b"9" * 100_000 + b"}}", "out of range"),
        (b'{"escalation": {"threshold": 1e999}}', "out of range"),
    ],
)
def test_everything_that_is_wrong_is_a_value_error(data, message):
    with pytest.raises(ValueError, match=message):
        decode_json(data, Plan)


@given(st.binary())
def test_arbitrary_bytes_raise_nothing_else(data):
    with contextlib.suppress(ValueError):
        decode_json(data, Plan)
