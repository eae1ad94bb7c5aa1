"""The subset of protobuf's wire format that composing and checking ONNX fragments needs.

Mirrored in Kotlin; the device needs no onnx or protobuf package.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """``value`` ≥ 0 as a base-128 varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer_field(number: int, value: int) -> bytes:
    """A varint field."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A length-delimited field: bytes, a string or a message."""
    return bytes_head(number, len(value)) + value


def bytes_head(number: int, length: int) -> bytes:
    """Tag and length prefix of a length-delimited field."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(length)


def text_field(number: int, value: str) -> bytes:
    """A string field."""
    return bytes_field(number, value.encode())


def read_fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """The fields of one message: (number, wire type, integer or bytes), without copying.

    Raises:
        ValueError: the bytes are not a message.
    """
    position, size = 0, len(data)
    while position < size:
        tag, position = _read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, position = _read_varint(data, position)
            yield number, kind, value
            continue
        if kind == LENGTH_DELIMITED:
            length, position = _read_varint(data, position)
        elif kind == FIXED64:
            length = 8
        elif kind == FIXED32:
            length = 4
        else:
            raise ValueError(f"unknown wire type {kind}")
        if position + length > size:
            raise ValueError("truncated field")
        yield number, kind, data[position : position + length]
        position += length


def read_varints(data: memoryview) -> Iterator[int]:
    """The integers of a packed field.

    Raises:
        ValueError: the bytes are not varints.
    """
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield value


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("truncated or overlong varint")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
