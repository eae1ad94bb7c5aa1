from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from device_sdk.fragments import protobuf

numbers = st.integers(1, 2**29 - 1)
words = st.integers(0, 2**64 - 1)


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    return [
        (number, value if isinstance(value, int) else bytes(value))
        for number, _, value in protobuf.read_fields(memoryview(data))
    ]


@pytest.mark.parametrize(("value", "encoded"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")])
def test_known_varints(value, encoded):
    assert protobuf.varint(value) == encoded


@given(st.lists(st.tuples(numbers, words | st.binary(max_size=300))))
def test_what_is_written_is_read(message):
    encoded = b"".join(
        protobuf.integer_field(number, value) if isinstance(value, int) else protobuf.bytes_field(number, value)
        for number, value in message
    )
    assert fields(encoded) == message


@given(numbers, st.text())
def test_text_is_utf8(number, text):
    assert fields(protobuf.text_field(number, text)) == [(number, text.encode())]


@given(numbers, st.binary(min_size=4, max_size=4), st.binary(min_size=8, max_size=8))
def test_fixed_width_fields_are_stepped_over(number, four, eight):
    encoded = protobuf.varint(number << 3 | protobuf.FIXED32) + four
    encoded += protobuf.varint(number << 3 | protobuf.FIXED64) + eight
    assert fields(encoded) == [(number, four), (number, eight)]
    kinds = [kind for _, kind, _ in protobuf.read_fields(memoryview(encoded))]
    assert kinds == [protobuf.FIXED32, protobuf.FIXED64]


@given(st.lists(words))
def test_packed_integers_are_read(values):
    assert list(protobuf.read_varints(memoryview(b"".join(map(protobuf.varint, values))))) == values


@given(numbers, st.binary(max_size=50), st.data())
def test_a_truncated_field_is_refused(number, value, data):
    encoded = protobuf.bytes_field(number, value)
    cut = data.draw(st.integers(1, len(encoded) - 1))
    with pytest.raises(ValueError, match="truncated"):
        fields(encoded[:cut])


@given(st.binary(max_size=200))
@example(b"\x80" * 200)
@example(b"\x0a" + b"\xff" * 9 + b"\x01")
@example(b"\x0a" + b"\xff" * 9 + b"\x7f")
def test_arbitrary_bytes_are_read_or_refused(data):
    try:
        read = fields(data)
    except ValueError:
        return
    assert sum(len(value) for _, value in read if isinstance(value, bytes)) <= len(data)


def test_an_overlong_varint_is_refused():
    with pytest.raises(ValueError, match="overlong"):
        fields(b"\x08" + b"\x80" * 10 + b"\x01")


@pytest.mark.parametrize("kind", [3, 4, 6, 7])
def test_wire_types_that_onnx_does_not_use_are_refused(kind):
    with pytest.raises(ValueError, match=f"unknown wire type {kind}"):
        fields(bytes([1 << 3 | kind, 0]))
