"""Receiving one request: waitress's parser with deadlines, a check at the head, and limits on the framing of chunks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from waitress.parser import HTTPRequestParser
from waitress.utilities import BadRequest

from device_sdk.errors import PathweaveError
from server.errors import MalformedError, RequestError
from server.http.memory_budget import Reservation

MAX_LINE_BYTES = 256  # a chunk's size with its extensions
MAX_TRAILER_BYTES = 8192
FREE_CHUNKS = 1024  # beyond these, chunks must have MIN_MEAN_BYTES on average
MIN_MEAN_BYTES = 64
_HEXADECIMAL = frozenset(b"0123456789abcdefABCDEF")
_MAX_DIGITS = 12


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


class ChunkedBody:
    """Decodes chunks (RFC 9112 §7.1) into ``buffer``, with the interface of waitress's receivers.

    The framing costs time and memory proportional to the bytes received: endless lines and floods of tiny chunks are
    refused. ``error`` is set then, and ``completed`` once the body has ended.
    """

    completed = False
    error: BadRequest | None = None

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._line = bytearray()
        self._left = 0  # bytes of the current chunk that are still to come
        self._after_chunk = False  # CRLF must come next
        self._in_trailer = False
        self._trailer_bytes = 0
        self._chunks = 0

    def __len__(self) -> int:
        return int(self._buffer.__len__())

    def getfile(self) -> Any:
        """The file with the decoded body."""
        return self._buffer.getfile()

    def getbuf(self) -> Any:
        """The buffer with the decoded body."""
        return self._buffer

    def received(self, data: bytes) -> int:
        """Take ``data``; returns how many bytes of it belong to the body."""
        at = 0
        while at < len(data) and not self.completed and self.error is None:
            if self._left:
                piece = data[at : at + self._left]
                self._buffer.append(piece)
                self._left -= len(piece)
                self._after_chunk = not self._left
                at += len(piece)
            else:
                at = self._take_line(data, at)
        return at

    def _take_line(self, data: bytes, at: int) -> int:
        """Collect a line from ``data[at:]`` and interpret it once complete; returns where the rest starts."""
        limit = MAX_TRAILER_BYTES - self._trailer_bytes if self._in_trailer else MAX_LINE_BYTES
        end = data.find(b"\n", at, at + limit + 2)
        stop = len(data) if end < 0 else end + 1
        if len(self._line) + stop - at > limit + 2:
            self.error = BadRequest("a line between the chunks is too long")
            return at
        self._line += data[at:stop]
        if end >= 0:
            line, self._line = bytes(self._line), bytearray()
            if line.endswith(b"\r\n"):
                self._interpret(line[:-2])
            else:
                self.error = BadRequest("a line between the chunks does not end with CRLF")
        return stop

    def _interpret(self, line: bytes) -> None:
        if self._after_chunk:
            self._after_chunk = False
            if line:
                self.error = BadRequest("a chunk is longer than its size")
        elif self._in_trailer:
            self._trailer_bytes += len(line) + 2
            self.completed = not line
        else:
            self._start_chunk(line.partition(b";")[0].rstrip(b" \t"))

    def _start_chunk(self, digits: bytes) -> None:
        if not 0 < len(digits) <= _MAX_DIGITS or not _HEXADECIMAL.issuperset(digits):
            self.error = BadRequest("the size of a chunk is not hexadecimal")
            return
        self._chunks += 1
        self._left = int(digits, 16)
        self._in_trailer = not self._left
        if self._chunks > FREE_CHUNKS + len(self) // MIN_MEAN_BYTES:
            self.error = BadRequest("the chunks are too small")
