"""A fuzzer for where there is no better one: mutated inputs, from a fixed seed, without coverage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

MAX_BYTES = 100_000
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_VALUES = (
    *(b"0", b"-1", b"1", b"255", b"256", b"65536", b"2147483648", b"-2147483649", b"9223372036854775808", b"1e999"),
    *(b"18446744073709551616", b"1e-320", b"NaN", b"null", b"true", b'""', b"[]", b"{}", b"0.1", b"-0", b"1" * 400),
)
_PIECES = (
    *(b"\x00", b"\xff", b"\x80", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff" * 10 + b"\x01", b"[" * 2000),
    *(b'{"a":' * 500, b'"', b"\\u0000", b"\\ud800", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\n", b"\r\n", b"%s%n"),
)


def mutations(seeds: Sequence[bytes], *, seed: int) -> Iterator[bytes]:
    """Without end: an input with 1 to 6 mutations; one in four begins with the last result instead of a seed."""
    random = np.random.default_rng(seed)
    data = seeds[0]
    while True:
        if random.integers(4):
            data = seeds[int(random.integers(len(seeds)))]
        for _ in range(random.integers(1, 7)):
            data = _mutated(data, seeds, random)[:MAX_BYTES]
        yield data


def _mutated(data: bytes, seeds: Sequence[bytes], random: np.random.Generator) -> bytes:
    at, kind = int(random.integers(len(data) + 1)), int(random.integers(9))
    end = min(len(data), at + int(2 ** random.uniform(0, 8)))
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << int(random.integers(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + random.bytes(end - at) + data[end:]
    if kind == 2:
        return data[:at] + data[end:]
    if kind == 3:
        return data[:at] + data[at:end] * int(random.integers(2, 5)) + data[end:]
    if kind == 4:
        return data[:at]
    if kind == 5:
        other = seeds[int(random.integers(len(seeds)))]
        begin = int(random.integers(len(other) + 1))
        return data[:at] + other[begin : begin + 64] + data[end:]
    if kind == 6:
        return data[:at] + _PIECES[int(random.integers(len(_PIECES)))] + data[at:]
    numbers = list(_NUMBER.finditer(data[at : at + 4096]))
    if not numbers:
        return data[:at] + random.bytes(1) + data[at:]
    chosen = numbers[int(random.integers(len(numbers)))]
    return data[: at + chosen.start()] + _VALUES[int(random.integers(len(_VALUES)))] + data[at + chosen.end() :]
