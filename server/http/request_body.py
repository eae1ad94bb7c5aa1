"""Bodies: read within a limit, decompressed, decoded; compressed for replies."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import TypeVar

from flask import Request

from device_sdk.files.atomic import decode_json
from server.errors import EncodingError, MalformedError, TooLargeError
from server.http.memory_budget import RESERVATION, Reservation

_COPIES = 2  # of a decompressed body: as bytes, and decoded
_Decoded = TypeVar("_Decoded")
ENCODINGS = ("gzip", "deflate")
_WINDOW = {"gzip": 31, "deflate": 15}  # zlib's wbits; deflate means a zlib stream (RFC 9110 §8.4.1.2)
_LEVEL = 5
_STEP_BYTES = 64 * 1024


def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The body, decompressed if necessary; ``max_bytes`` limits it both as received and decompressed.

    Raises:
        RequestError: too large, an unknown encoding, invalid or truncated data, or no memory for it.
    """
    request.max_content_length = max_bytes  # Flask answers 413 beyond it
    data = request.get_data(cache=False)
    return decompress(
        data,
        request.headers.get("Content-Encoding", ""),
        max_bytes=max_bytes,
        account=lambda size_bytes: reserve(request, _COPIES * size_bytes),
    )


def read_json(
    request: Request, kind: type[_Decoded], *, max_bytes: int, what: str = "request", hint: str | None = None
) -> _Decoded:
    """The body as a ``kind``. Raises as ``read_body``, and MalformedError if it is none; ``what``: its name there."""
    try:
        return decode_json(read_body(request, max_bytes=max_bytes), kind)
    except ValueError as error:
        raise MalformedError(f"the {what} is invalid: {error}", hint=hint) from error


def reserve(request: Request, size_bytes: int) -> None:
    """Reserve ``size_bytes`` more of memory until the request is answered.

    Raises:
        RequestError: there is no memory for it.
    """
    reservation: Reservation | None = request.environ.get(RESERVATION)
    if reservation is not None:  # None: without a body, or not behind our server
        reservation.grow(size_bytes)


def decompress(data: bytes, encoding: str, *, max_bytes: int, account: Callable[[int], None] | None = None) -> bytes:
    """``data`` without its content encoding; never produces much more than ``max_bytes``.

    ``account`` is called with a number of bytes before so many more are produced, and may raise.

    Raises:
        EncodingError: an unsupported encoding.
        MalformedError: damaged or truncated data, or trailing bytes.
        TooLargeError: more than ``max_bytes`` after decompression.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return data
    if name not in _WINDOW:
        raise EncodingError(f"the body is encoded as {encoding[:40]!r}", hint="gzip and deflate are supported")
    stream = zlib.decompressobj(_WINDOW[name])
    pieces: list[bytes] = []
    size = at = 0
    try:
        while not stream.eof and (stream.unconsumed_tail or at < len(data)) and size <= max_bytes:
            compressed = stream.unconsumed_tail or data[at : at + _STEP_BYTES]
            at += 0 if stream.unconsumed_tail else len(compressed)
            if account is not None:
                account(_STEP_BYTES)
            pieces.append(stream.decompress(compressed, _STEP_BYTES))
            size += len(pieces[-1])
    except zlib.error as error:
        raise MalformedError(f"the body is not {name}: {error}") from error
    if size > max_bytes:
        raise TooLargeError(f"the body holds more than {max_bytes} bytes once it is decompressed")
    if not stream.eof:
        raise MalformedError(f"the {name} body is truncated")
    if stream.unused_data or at < len(data):
        raise MalformedError(f"{len(stream.unused_data) + len(data) - at} bytes follow the {name} body")
    return b"".join(pieces)


def compress(data: bytes, encoding: str) -> bytes:
    """``data`` in a content encoding, one of ENCODINGS."""
    return gzip.compress(data, _LEVEL, mtime=0) if encoding == "gzip" else zlib.compress(data, _LEVEL)
