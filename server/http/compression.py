"""Compressed bodies, in and out. Pure."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

from server.errors import EncodingError, MalformedError, TooLargeError

ENCODINGS = ("gzip", "deflate")
_WINDOW = {"gzip": 31, "deflate": 15}  # zlib's wbits; deflate means a zlib stream (RFC 9110 §8.4.1.2)
_LEVEL = 5
_STEP_BYTES = 64 * 1024


def _no_account(_: int) -> None:
    """Counts nothing."""


def decompress(data: bytes, encoding: str, *, max_bytes: int, account: Callable[[int], None] = _no_account) -> bytes:
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
