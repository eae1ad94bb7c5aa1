from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.files.atomic import decode_json


class Step(msgspec.Struct, frozen=True):
    name: str
    position: int = 0


class Kept(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...]
    threshold: float = 0.5


def test_a_value_is_decoded_and_unknown_fields_are_ignored():
    assert decode_json(b'{"steps": [{"name": "a", "x": 1}], "later": [{}]}', Kept) == Kept((Step("a"),))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b'{"steps": 1}', "Expected `array`"),
        (b'{"steps": [{"name": "\xff"}]}', "(?i)utf-8"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
        (b'{"steps": [{"name": "a", "position": ' + b"9" * 100_000 + b"}]}", "out of range"),
        (b'{"threshold": 1e999}', "out of range"),
    ],
)
def test_everything_that_is_wrong_is_a_value_error(data, message):
    with pytest.raises(ValueError, match=message):
        decode_json(data, Kept)


@given(st.binary())
def test_arbitrary_bytes_raise_nothing_else(data):
    with contextlib.suppress(ValueError):
        decode_json(data, Kept)
