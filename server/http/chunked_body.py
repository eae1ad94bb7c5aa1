"""A body in chunks (RFC 9112 §7.1), with limits on its framing."""

from __future__ import annotations

from typing import Any

from waitress.utilities import BadRequest

MAX_LINE_BYTES = 256  # a chunk's size with its extensions
MAX_TRAILER_BYTES = 8192
FREE_CHUNKS = 1024  # beyond these, chunks must have MIN_MEAN_BYTES on average
MIN_MEAN_BYTES = 64
_HEXADECIMAL = frozenset(b"0123456789abcdefABCDEF")
_MAX_DIGITS = 12


class ChunkedBody:
    """Decodes chunks into ``buffer``, with the interface of waitress's receivers.

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
