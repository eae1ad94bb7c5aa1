"""Reading a request's body within its bounds."""

from __future__ import annotations

from flask import Request

from server.compression import decompress


def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The body, decompressed if it came so; ``max_bytes`` bounds it both as it came and decompressed.

    Raises:
        RequestError: too large, or an encoding that is not known, not what it says or cut short.
    """
    request.max_content_length = max_bytes  # Flask answers 413 to more
    data = request.get_data(cache=False)
    return decompress(data, request.headers.get("Content-Encoding", ""), max_bytes=max_bytes)
