"""Receiving one request: waitress's parser with deadlines and a check at the head."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from waitress.parser import HTTPRequestParser

from device_sdk.errors import PathweaveError
from server.errors import MalformedError, RequestError
from server.http.chunked_body import ChunkedBody
from server.http.memory_budget import Reservation


@dataclass(frozen=True)
class Limits:
    """Limits of clients, in seconds, bytes and connections."""

    head_s: float = 10.0  # from the first byte of a request to the end of its headers
    idle_s: float = 30.0  # between two requests
    grace_s: float = 10.0  # of a body or a reply, before its rate counts
    min_bytes_per_s: int = 4096  # mean rate of a body or a reply
    head_bytes: int = 32 * 1024
    connections: int = 512
    connections_per_address: int = 128


class AdmitBody(Protocol):
    """Decides at a request's head if its body is received."""

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], *, address: str, body_bytes: int
    ) -> Reservation:
        """The memory for the body, which is released once the request is answered.

        Raises:
            PathweaveError: the body is refused.
        """


class SlowRequestError(RequestError):
    """The request does not arrive in time."""

    status = 408


class RequestReader(HTTPRequestParser):
    """Receives one request. A body is received only after ``admit``."""

    body_rcv: Any = None  # declared here since waitress has no types
    completed: bool = False
    error: Any = None
    headers: dict[str, str]

    def __init__(self, adj: Any, *, admit: AdmitBody | None = None, address: str = "") -> None:
        super().__init__(adj)
        self._admit = admit
        self._address = address
        self._began_s = time.monotonic()
        self._head_done_s: float | None = None
        self.received_s = 0.0
        self.reservation: Reservation | None = None

    def received(self, data: bytes) -> int:
        """Take ``data``; returns the number of its bytes that belong to this request."""
        body = self.body_rcv
        before = 0 if body is None else len(body)
        consumed = int(super().received(data))
        try:
            if self.chunked and body is not None and self.reservation is not None:
                self.reservation.receive(len(body) - before)
        except RequestError as error:
            self.error = error
        if self.error is not None:
            self.refuse(self.error)
        if self.completed:
            self.received_s = time.monotonic()
        return consumed

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the head, then let ``admit`` decide about the body."""
        super().parse_header(header_plus)
        self.error = self.error or self._contradiction()
        if self.body_rcv is None or self.error is not None:
            return
        if self.chunked:
            self.body_rcv = ChunkedBody(self.body_rcv.getbuf())
        self._head_done_s = time.monotonic()
        if self._admit is None or self.content_length >= self.adj.max_request_body_size:
            return  # waitress refuses the latter
        try:
            size_bytes = 0 if self.chunked else self.content_length
            self.reservation = self._admit(
                self.command, self.path, self.headers, address=self._address, body_bytes=size_bytes
            )
        except PathweaveError as error:
            self.error = error

    def _contradiction(self) -> RequestError | None:
        """Why the head does not say which host it is for, or where its body ends (RFC 9112, sections 3.2 and 6.3)."""
        if self.version == "1.1" and "HOST" not in self.headers:
            return MalformedError("the request has no Host")
        if self.chunked and "CONTENT_LENGTH" in self.headers:
            return MalformedError("the request has both a Content-Length and a Transfer-Encoding")
        return None

    def refuse(self, error: Any) -> None:
        """End the request with an error, whether or not the rest of it arrives."""
        if not hasattr(self, "path"):
            self.headers = {}
            super().parse_header(b"GET / HTTP/1.0\r\n")  # sets the fields that a task reads
        self.error = error
        self.expect_continue = False  # or waitress would still invite the body
        self.completed = True

    def late(self, now_s: float, limits: Limits) -> bool:
        """True if the head or the body arrives too slowly."""
        if self._head_done_s is None:
            return now_s - self._began_s > limits.head_s
        counted_s = now_s - self._head_done_s - limits.grace_s
        return bool(self.body_bytes_received < counted_s * limits.min_bytes_per_s)

    def close(self) -> None:
        """Free the body and its memory. Idempotent."""
        super().close()
        if self.reservation is not None:
            self.reservation.release()
