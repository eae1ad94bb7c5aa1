"""What a server's answer means to a transfer that wants to go on where it was cut. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

NextStep = Literal["append", "replace", "complete", "again"]

_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/(?:([0-9]{1,18})|\*)")


def request_headers(offset: int, etag: str | None) -> dict[str, str]:
    """Asks for the bytes from ``offset`` on, if what is there is still what ``etag`` named.

    Without an etag the range is asked for as it is: the digest decides in the end.
    """
    headers = {"Accept-Encoding": "identity"}  # ranges count the bytes that travel
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if etag is not None:
            headers["If-Range"] = etag
    return headers


def strong_etag(headers: Mapping[str, str]) -> str | None:
    """The etag of a reply, if it stands for exactly these bytes."""
    etag = headers.get("etag", "")
    return etag if len(etag) > 2 and etag[0] == etag[-1] == '"' else None


def next_step(status: int, headers: Mapping[str, str], *, offset: int) -> NextStep:
    """What to do with the answer to a request from ``offset`` on (whose status is 200, 206 or 416).

    ``append`` the body to what is there; ``replace`` what is there by the body; ``complete``: all is there already;
    ``again``: forget what is there and ask for everything.
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
