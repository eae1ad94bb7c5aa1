"""The port of transports, its addresses, and what all of them make of replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from device_sdk.errors import RefusedError, TransferError, UsageError
from device_sdk.files.atomic import decode_json

Clock = Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True)
class Deadlines:
    """Time limits of a transfer: ``idle_s`` without a byte, ``total_s`` altogether."""

    idle_s: float = 10.0
    total_s: float = 600.0


class Reply(Protocol):
    """A response whose head has arrived: ``status``, and ``headers`` with lower-case names."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives, decoded by its Content-Encoding, of at most the request's ``max_bytes``.

        Raises:
            DeadlineError: a deadline passed.
            TransferError: the connection was cut before the announced length.
            ProtocolError: the body is longer than allowed.
        """


class Transport(Protocol):
    """Sends requests. Thread-safe."""

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        deadlines: Deadlines,
        max_bytes: int,
    ) -> AbstractContextManager[Reply]:
        """Send one request. Redirects are not followed; error statuses are returned, not raised.

        Raises:
            TransferError: no connection (DeadlineError: not in time).
        """

    def close(self) -> None:
        """Drop idle connections. Idempotent."""


_NOT_PRINTABLE = re.compile(r"[^\x21-\x7e]")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """The normalised origin of ``url`` (scheme, host and port), to which a token is bound.

    Raises:
        UsageError: not an absolute URL, or one with a user name or a password.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError(f"{shown(url)!r} is not an address", hint=_HINT) from None
    if not parts.scheme or not host or _NOT_PRINTABLE.search(url):
        raise UsageError(f"{shown(url)!r} is not an address", hint=_HINT)
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"the address of {host} contains a user name or a password", hint="give a token instead")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}:{port or _DEFAULT_PORTS.get(parts.scheme, 0)}"


def shown(url: str) -> str:
    """``url`` for messages and logs: without user name, password, query and fragment, which may be secrets."""
    scheme, separator, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    _, at, place = rest.rpartition("@")  # first: a password may have any of / ? #
    place = re.split(r"[?#]", place, maxsplit=1)[0]
    return f"{scheme}{separator}{'…@' if at else ''}{place}"[:200]


def base(url: str) -> str:
    """``url`` without a trailing slash, for appending paths.

    Raises:
        UsageError: as ``origin``, or it has a query or a fragment.
    """
    origin(url)
    if "?" in url or "#" in url:
        raise UsageError(f"{shown(url)!r} has a query or a fragment", hint=_HINT)
    return url.rstrip("/")


_HINT = "an address looks like https://models.example.org/v1/bundles/NAME"


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
