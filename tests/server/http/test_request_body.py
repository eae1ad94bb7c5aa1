from __future__ import annotations

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import EncodingError, MalformedError, TooLargeError
from server.http.request_body import ENCODINGS, compress, decompress

encodings = pytest.mark.parametrize("encoding", ENCODINGS)


@given(st.binary(max_size=2000), st.sampled_from([*ENCODINGS, "GZIP", " deflate "]))
def test_what_is_compressed_comes_back(data, encoding):
    assert decompress(compress(data, encoding.strip().lower()), encoding, max_bytes=2000) == data


@pytest.mark.parametrize("encoding", ["", "identity"])
def test_a_plain_body_stays(encoding):
    assert decompress(b"plain", encoding, max_bytes=1) == b"plain"


@encodings
def test_a_bomb_is_refused_before_it_goes_off(encoding):
    packed = compress(bytes(50_000_000), encoding)
    assert len(packed) < 100_000
    with pytest.raises(TooLargeError):
        decompress(packed, encoding, max_bytes=1000)


@encodings
def test_the_limit_itself_is_allowed(encoding):
    packed = compress(bytes(1000), encoding)
    assert decompress(packed, encoding, max_bytes=1000) == bytes(1000)
    with pytest.raises(TooLargeError):
        decompress(packed, encoding, max_bytes=999)


@encodings
def test_cut_short_trailing_or_something_else_is_refused(encoding):
    packed = compress(b"some data that is not too short" * 10, encoding)
    for wrong in (packed[:-1], packed[:10], b"", packed + b"x", b"plain", b"\0" * 100):
        with pytest.raises(MalformedError):
            decompress(wrong, encoding, max_bytes=10_000)


def test_other_encodings_are_refused():
    for encoding in ("br", "gzip, deflate", "x" * 1000):
        with pytest.raises(EncodingError) as caught:
            decompress(b"", encoding, max_bytes=1)
        assert len(str(caught.value)) < 100


def test_it_is_what_others_call_gzip_and_deflate():
    assert gzip.decompress(compress(b"data", "gzip")) == b"data"
    assert zlib.decompress(compress(b"data", "deflate")) == b"data"


@encodings
def test_memory_is_accounted_before_it_is_taken(encoding):
    class NoMemoryError(Exception):
        pass

    asked = []

    def account(size_bytes):
        asked.append(size_bytes)
        if sum(asked) > 1_000_000:
            raise NoMemoryError

    with pytest.raises(NoMemoryError):
        decompress(compress(bytes(50_000_000), encoding), encoding, max_bytes=10**9, account=account)
    asked.clear()
    assert len(decompress(compress(bytes(500_000), encoding), encoding, max_bytes=10**9, account=account)) == 500_000
    assert 500_000 <= sum(asked) < 700_000


def test_large_bodies_that_do_not_compress_come_back():
    data = random.Random(0).randbytes(3_000_000)
    assert decompress(compress(data, "gzip"), "gzip", max_bytes=len(data)) == data
