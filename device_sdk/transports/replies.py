"""What a reply says: its whole body, or why the server refused."""

from __future__ import annotations

import msgspec

from device_sdk.errors import RefusedError, TransferError
from device_sdk.files.untrusted_json import decode_json
from device_sdk.transports.port import Reply

REASON_MAX_BYTES = 65_536
REASON_MAX_CHARACTERS = 300

_HINTS = {
    401: "give a token that the server knows",
    403: "give a token that the server knows",
    404: "check the address",
    429: "the server is busy: try again later",
    503: "the server is busy: try again later",
}


class _Refusal(msgspec.Struct):
    error: str


def read_all(reply: Reply) -> bytes:
    """The whole body, which is bounded by the request's ``max_bytes``.

    Raises:
        TransferError: as ``Reply.chunks``.
    """
    return b"".join(reply.chunks())


def require_success(reply: Reply, *, what: str) -> None:
    """Raise RefusedError unless the status is 2xx; ``what`` was asked for. Leaves the body of a success alone."""
    if 200 <= reply.status < 300:
        return
    reason = _reason(reply)
    hint = _HINTS.get(reply.status)
    if 300 <= reply.status < 400:
        hint = "redirects are not followed: give the address that the server names"
        reason = reason or _one_line(reply.headers.get("location", ""))
    message = f"{what}: the server answered {reply.status}" + (f": {reason}" if reason else "")
    raise RefusedError(message, status=reply.status, hint=hint)


def _reason(reply: Reply) -> str:
    """The server's own words, as one line; empty if it has none that are meant for a person."""
    data = b""
    try:
        for chunk in reply.chunks():
            data += chunk
            if len(data) > REASON_MAX_BYTES:
                return ""
    except TransferError:
        return ""
    try:
        return _one_line(decode_json(data, _Refusal).error)
    except ValueError:
        plain = reply.headers.get("content-type", "").startswith("text/plain")
        return _one_line(data.decode(errors="replace")) if plain else ""


def _one_line(text: str) -> str:
    """Without line breaks and control characters: this is shown on terminals."""
    words = " ".join(text[: 4 * REASON_MAX_CHARACTERS].split())
    return "".join(letter for letter in words if letter.isprintable())[:REASON_MAX_CHARACTERS]
