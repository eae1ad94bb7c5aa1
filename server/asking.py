"""Requests of commands to a server."""

from __future__ import annotations

import contextlib
import json
from typing import TypeVar

from device_sdk.errors import ProtocolError
from device_sdk.files.atomic import decode_json

_MAX_REPLY_BYTES = 4_000_000
_Told = TypeVar("_Told")


def ask_server(
    method: str, url: str, path: str, kind: type[_Told], value: object = None, *, what: str, token: str | None = None
) -> _Told:
    """A server's answer to a request with ``value`` as JSON (TransferError, ProtocolError). ``what``: for messages."""
    from device_sdk.transports import Deadlines, make_transport
    from device_sdk.transports.port import base, read_all, require_success

    body = None if value is None else json.dumps(value).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    deadlines = Deadlines(idle_s=60.0, total_s=300.0)  # publishing verifies the whole bundle first
    with (
        contextlib.closing(make_transport(url, token=token)) as transport,
        transport.send(
            method, base(url) + path, headers=headers, body=body, deadlines=deadlines, max_bytes=_MAX_REPLY_BYTES
        ) as reply,
    ):
        require_success(reply, what=what)
        return decode_reply(read_all(reply), kind, what=what)


def decode_reply(data: bytes, kind: type[_Told], *, what: str) -> _Told:
    """A server's reply as a ``kind`` (ProtocolError if it is none)."""
    try:
        return decode_json(data, kind)
    except ValueError as error:
        raise ProtocolError(f"the server's response to {what} breaks the protocol: {error}") from error
