"""Compressed bodies, in and out. Pure."""

from __future__ import annotations

import gzip
import zlib

from server.errors import EncodingError, MalformedError, TooLargeError

ENCODINGS = ("gzip", "deflate")
_WINDOW = {"gzip": 31, "deflate": 15}  # zlib's wbits; deflate means a zlib stream (RFC 9110 §8.4.1.2)
_LEVEL = 5


def decompress(data: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """``data`` without its content encoding; never produces more than ``max_bytes``.

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
    try:
        plain = stream.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise MalformedError(f"the body is not {name}: {error}") from error
    if len(plain) > max_bytes:
        raise TooLargeError(f"the body holds more than {max_bytes} bytes once it is decompressed")
    if not stream.eof:
        raise MalformedError(f"the {name} body is truncated")
    if stream.unused_data:
        raise MalformedError(f"{len(stream.unused_data)} bytes follow the {name} body")
    return plain


def compress(data: bytes, encoding: str) -> bytes:
    """``data`` in a content encoding, one of ENCODINGS."""
    return gzip.compress(data, _LEVEL, mtime=0) if encoding == "gzip" else zlib.compress(data, _LEVEL)
