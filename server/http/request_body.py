"""Reading a request's body with a size limit."""

from __future__ import annotations

from flask import Request

from server.http.compression import decompress
from server.http.memory_budget import RESERVATION, Reservation

_COPIES = 2  # of a decompressed body: as bytes, and decoded


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


def reserve(request: Request, size_bytes: int) -> None:
    """Reserve ``size_bytes`` more of memory until the request is answered.

    Raises:
        RequestError: there is no memory for it.
    """
    reservation: Reservation | None = request.environ.get(RESERVATION)
    if reservation is not None:  # None: without a body, or not behind our server
        reservation.grow(size_bytes)
