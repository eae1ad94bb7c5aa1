from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waitress.buffers import OverflowableBuffer

from server.http.request_reader import FREE_CHUNKS, ChunkedBody


def receive(pieces):
    """A body that got ``pieces``, and what of them it did not take."""
    body = ChunkedBody(OverflowableBuffer(10**6))
    left = b""
    for piece in pieces:
        left += piece[body.received(piece) :]
    return body, left


def chunk(data, extension=b""):
    return f"{len(data):x}".encode() + extension + b"\r\n" + data + b"\r\n"


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.data())
def test_chunks_are_joined_wherever_the_network_cuts_them(chunks, data):
    sent = b"".join(map(chunk, chunks)) + b"0\r\n\r\nNEXT"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))
    body, left = receive([sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)])
    assert body.completed
    assert body.error is None
    assert body.getfile().read() == b"".join(chunks)
    assert left == b"NEXT"


def test_extensions_and_trailers_are_ignored():
    body, left = receive([chunk(b"abc", b' ;x="y"') + b"0\r\nA: b\r\nC: d\r\n\r\n"])
    assert (body.completed, body.getfile().read(), left) == (True, b"abc", b"")


@pytest.mark.parametrize(
    "sent",
    [
        b"x\r\n",
        b"\r\n",
        b"-1\r\n",
        b"0x1\r\n",
        b"1_0\r\n",
        b" 1\r\n",
        b"1\nx\r\n",
        b"1\r\nxy\r\n",
        b"1\r\nxx",
        b"fffffffffffffffff\r\n",
        b"1" * 300,
        b"1;" + b"x" * 300,
        b"0\r\n" + b"A: b\r\n" * 2000,
        b"0\r\n" + b"A" * 9000,
        chunk(b"x") * 2 * FREE_CHUNKS,
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_wrong_and_wasteful_framing_is_refused(sent, size):
    if sent == b"1\r\nxx":
        sent += b"\r\n"
    body, _ = receive([sent[at : at + size] for at in range(0, len(sent), size)])
    assert body.error is not None
    assert not body.completed


def test_an_endless_line_costs_no_more_than_its_length():
    body = ChunkedBody(OverflowableBuffer(10**6))
    taken = sum(body.received(b"0" * 10_000) for _ in range(1000))
    assert taken < 1000


def test_large_bodies_may_have_many_chunks():
    body, _ = receive([chunk(bytes(100)) * 10 * FREE_CHUNKS + b"0\r\n\r\n"])
    assert body.completed
    assert len(body) == 1000 * FREE_CHUNKS
