"""Range requests: headers to resume a transfer, and the meaning of the response. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

NextStep = Literal["append", "replace", "complete", "again"]

_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/(?:([0-9]{1,18})|\*)")


def request_headers(offset: int, etag: str | None) -> dict[str, str]:
    """Headers that request the bytes from ``offset`` on, on condition that the entity tag is still ``etag``.

    Without an etag the range is unconditional; the digest check detects a mismatch.
    """
    headers = {"Accept-Encoding": "identity"}  # ranges count encoded bytes
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if etag is not None:
            headers["If-Range"] = etag
    return headers


def strong_etag(headers: Mapping[str, str]) -> str | None:
    """The etag of a reply, if it is a strong one, else None."""
    etag = headers.get("etag", "")
    return etag if len(etag) > 2 and etag[0] == etag[-1] == '"' else None


def next_step(status: int, headers: Mapping[str, str], *, offset: int) -> NextStep:
    """Handling of the response, of status 200, 206 or 416, to a request from ``offset`` on.

    ``append``: append the body; ``replace``: discard the bytes received so far and store the body; ``complete``: all
    bytes were received before; ``again``: discard them and request the whole blob.
    """
    if status == 200:
        return "replace" if offset else "append"
    match = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if match is None:
        return "again"
    start, _, total = match.groups()
    if status == 206 and start is not None and int(start) == offset:
        return "append"
    if status == 416 and start is None and total is not None and int(total) == offset > 0:
        return "complete"
    return "again"
