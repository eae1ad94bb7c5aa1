from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from device_sdk.errors import RefusedError, TransferError
from device_sdk.transports.port import REASON_MAX_CHARACTERS, read_all, require_success


@dataclass
class CannedReply:
    """A reply whose body is at hand; ``cut``: and then the connection ends."""

    status: int
    body: tuple[bytes, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False

    def chunks(self) -> Iterator[bytes]:
        yield from self.body
        if self.cut:
            raise TransferError("cut")


def refusal(reply: CannedReply) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        require_success(reply, what="the bundle")
    return caught.value


def test_the_chunks_of_a_body_are_joined():
    assert read_all(CannedReply(200, (b"a", b"", b"bc"))) == b"abc"


@pytest.mark.parametrize("status", [200, 204, 206, 299])
def test_a_success_passes_and_its_body_stays_unread(status):
    require_success(CannedReply(status, cut=True), what="the bundle")


@pytest.mark.parametrize("status", [100, 199, 304, 400, 404, 503, 599])
def test_anything_else_is_refused_with_its_status(status):
    error = refusal(CannedReply(status))
    assert error.status == status
    assert str(error) == f"the bundle: the server answered {status}"


def test_the_servers_own_words_are_repeated():
    body = json.dumps({"error": "no bundle of this name", "more": 1}).encode()
    error = refusal(CannedReply(404, (body[:9], body[9:])))
    assert str(error).endswith("answered 404: no bundle of this name")
    assert error.hint == "check the address"


def test_plain_text_is_repeated_and_a_page_is_not():
    assert "too busy" in str(refusal(CannedReply(503, (b"too busy",), {"content-type": "text/plain; charset=x"})))
    assert "html" not in str(refusal(CannedReply(503, (b"<html>",), {"content-type": "text/html"})))


def test_words_become_one_bounded_line_without_control_characters():
    words = "first\nsecond\x1b[31m\u202e" + "x" * 10_000
    text = str(refusal(CannedReply(500, (json.dumps({"error": words}).encode(),))))
    assert "first second[31m" in text
    assert text.isprintable()
    assert len(text) < REASON_MAX_CHARACTERS + 60


@pytest.mark.parametrize(
    "reply",
    [
        CannedReply(500, (b'{"error": "half',), cut=True),
        CannedReply(500, (b'{"error": 5}',)),
        CannedReply(500, (b"[" * 50_000,)),
        CannedReply(500, tuple([b" " * 1000] * 100)),
        CannedReply(500, (b"\xff\xfe",)),
    ],
)
def test_words_that_cannot_be_read_are_left_out(reply):
    assert str(refusal(reply)) == "the bundle: the server answered 500"


def test_a_redirect_names_where_it_leads():
    error = refusal(CannedReply(302, headers={"location": "https://new.example.org/"}))
    assert "https://new.example.org/" in str(error)
    assert "redirects" in error.hint
