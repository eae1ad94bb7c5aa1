"""An HTTP proxy before a real server that delays or spoils its replies, or finds no server behind it."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

import numpy as np

from device_sdk.offload.open_inference import (
    HEADER_LENGTH,
    InferResponse,
    NamedTensor,
    decode_response,
    encode_response,
)

Mode = Literal["well", "slow", "garbage"]
DELAY_S = 2.0
_UPSTREAM_S = 10.0
Reply = tuple[int, dict[str, str], bytes]


class FaultyProxy(ThreadingHTTPServer):
    """Forwards to ``upstream`` (host and port) as ``mode`` says; both may change at any time.

    ``garbage``: in turn noise, half a reply, the reply to an earlier question, one sample too many, another type, NaN.
    """

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.mode: Mode = "well"
        self.earlier: Reply | None = None
        self.turns = itertools.count()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A device that hung up is nothing to write about."""


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """A proxy that listens until the end."""
    proxy = FaultyProxy(upstream)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyProxy

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def log_message(self, format: str, *arguments: object) -> None:
        """Write nothing."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            reply = self._asked(body)
        except OSError:  # no server listens
            self.close_connection = True
            return
        mode = self.server.mode
        if mode == "slow":
            time.sleep(DELAY_S)
        if self.path.endswith("/infer") and reply[0] == 200:
            reply, self.server.earlier = (_spoilt(self.server, reply) if mode == "garbage" else reply), reply
        status, headers, data = reply
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _asked(self, body: bytes) -> Reply:
        connection = http.client.HTTPConnection(urlsplit(self.server.upstream).netloc, timeout=_UPSTREAM_S)
        try:
            dropped = ("host", "connection", "content-length")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
            connection.request(self.command, self.path, body=body or None, headers=headers)
            reply = connection.getresponse()
            kept = {
                name: value
                for name, value in reply.getheaders()
                if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server")
            }
            return reply.status, kept, reply.read()
        finally:
            connection.close()


def _spoilt(server: FaultyProxy, reply: Reply) -> Reply:
    status, headers, data = reply
    turn = next(server.turns) % 6
    if turn == 0:
        return status, headers, np.random.default_rng(turn).bytes(len(data))
    if turn == 1:
        return status, headers, data[: len(data) // 2]
    if turn == 2 and server.earlier is not None:
        return server.earlier
    length = next((value for name, value in headers.items() if name.lower() == HEADER_LENGTH.lower()), None)
    found = decode_response(data, header_length=None if length is None else int(length))
    output = found.outputs[0]
    values = output.data
    if turn == 3:
        values = np.concatenate([values, values[:1]])
    elif turn == 4:
        values = values.astype(np.float64)
    else:
        values = np.full_like(values, np.nan)
    wrong = InferResponse(found.model_name, (NamedTensor(output.name, values),), found.model_version, found.id)
    body, own = encode_response(wrong, binary=[output.name])
    return status, {**{n: v for n, v in headers.items() if n.lower() != HEADER_LENGTH.lower()}, **own}, body
