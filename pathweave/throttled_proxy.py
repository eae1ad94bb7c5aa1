"""A line between a device and a server that can be cut and slowed down, for the demo and for measurements."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

_PIECE = 1024  # bytes; at 3 Mbit/s they take 2.7 ms


@contextmanager
def cut_once(url: str, *, after_bytes: int) -> Iterator[str]:
    """A way to the server at ``url`` that breaks down once, ``after_bytes`` into what comes back; yields its URL."""
    with _line(url, Line(_server_of(url), cut_after_bytes=after_bytes)) as address:
        yield address


@contextmanager
def slow_uplink(url: str, *, mbps: float) -> Iterator[tuple[str, Line]]:
    """A way to the server at ``url`` whose uplink carries ``mbps`` Mbit/s; yields its URL, and the line to ask."""
    line = Line(_server_of(url), uplink_mbps=mbps)
    with _line(url, line) as address:
        yield address, line


def _server_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@contextmanager
def _line(url: str, line: Line) -> Iterator[str]:
    try:
        yield urlunsplit(urlsplit(url)._replace(netloc=f"127.0.0.1:{line.port}"))
    finally:
        line.close()


class Line:
    """Carries bytes to and fro. ``uplink_bytes`` counts those towards the server.

    With ``cut_after_bytes`` all connections break once so many came back, and later ones hold; ``uplink_mbps`` bounds
    the speed of what all connections together send.
    """

    def __init__(
        self, server: tuple[str, int], *, cut_after_bytes: int | None = None, uplink_mbps: float | None = None
    ) -> None:
        self._server = server
        self._left = cut_after_bytes
        self._seconds_per_byte = 0.0 if uplink_mbps is None else 8 / (uplink_mbps * 1e6)
        self._free_at = 0.0  # when the uplink has carried what it was given
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.uplink_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Break all connections and take no more."""
        # without shutdown the accepting thread would keep waiting
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # until the listener is closed
            while True:
                device, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for end in (device, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open |= {device, server}
                for source, sink, carry in ((device, server, self._up), (server, device, self._down)):
                    threading.Thread(target=self._carry, args=(source, sink, carry), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, pace: Callable[[int], None]) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                pace(len(piece))
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _up(self, count: int) -> None:
        """Wait until the uplink has carried ``count`` more bytes."""
        with self._lock:
            self.uplink_bytes += count
            self._free_at = max(self._free_at, time.perf_counter()) + count * self._seconds_per_byte
            wait_s = self._free_at - time.perf_counter()
        if self._seconds_per_byte and wait_s > 0:
            time.sleep(wait_s)

    def _down(self, count: int) -> None:
        """Break the line if this was what it still carried."""
        with self._lock:
            if self._left is None:
                return
            self._left -= count
            if self._left > 0:
                return
            self._left = None
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
