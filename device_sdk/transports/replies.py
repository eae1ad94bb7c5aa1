"""Reading replies: the whole body, or the server's reason for an error status."""

from __future__ import annotations

import msgspec

from device_sdk.errors import RefusedError, TransferError
from device_sdk.files.untrusted_json import decode_json
from device_sdk.transports.addresses import shown
from device_sdk.transports.port import Reply

REASON_MAX_BYTES = 65_536
REASON_MAX_CHARACTERS = 300

_HINTS = {
    401: "give a valid token for this server",
    403: "give a valid token for this server",
    404: "check the address",
    429: "the server is busy: try again later",
    503: "the server is busy: try again later",
}


class _Refusal(msgspec.Struct):
    error: str


def read_all(reply: Reply) -> bytes:
    """The whole body, of at most the request's ``max_bytes``.

    Raises:
        TransferError: as ``Reply.chunks``.
    """
    return b"".join(reply.chunks())


def require_success(reply: Reply, *, what: str) -> None:
    """Raise RefusedError unless the status is 2xx. ``what``: the request, for the message. Reads no successful body."""
    if 200 <= reply.status < 300:
        return
    reason = _reason(reply)
    hint = _HINTS.get(reply.status)
    if 300 <= reply.status < 400:
        hint = "redirects are not followed: give the address that the server names"
        reason = reason or _one_line(shown(reply.headers.get("location", "")))
    message = f"{what}: the server answered {reply.status}" + (f": {reason}" if reason else "")
    raise RefusedError(message, status=reply.status, hint=hint)


def _reason(reply: Reply) -> str:
    """The server's error message as one line; empty if the body is neither a JSON error nor plain text."""
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
    """``text`` without line breaks and control characters, since terminals show it."""
    words = " ".join(text[: 4 * REASON_MAX_CHARACTERS].split())
    return "".join(letter for letter in words if letter.isprintable())[:REASON_MAX_CHARACTERS]
