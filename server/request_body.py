"""Reading a request's body with a size limit."""

from __future__ import annotations

from flask import Request

from server.compression import decompress


def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The body, decompressed if necessary; ``max_bytes`` limits it both as received and decompressed.

    Raises:
        RequestError: too large, an unknown encoding, or invalid or truncated data.
    """
    request.max_content_length = max_bytes  # Flask answers 413 beyond it
    data = request.get_data(cache=False)
    return decompress(data, request.headers.get("Content-Encoding", ""), max_bytes=max_bytes)
