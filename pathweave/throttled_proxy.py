"""A TCP proxy with a limited uplink and one forced disconnection, for the demo and for benchmarks."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

_CHUNK = 1024  # bytes; 2.7 ms at 3 Mbit/s


@contextmanager
def cut_once(url: str, *, after_bytes: int) -> Iterator[str]:
    """Proxy ``url``; drop all connections once, after ``after_bytes`` of the responses. Yields the proxy's URL."""
    with _listening(url, ThrottledProxy(_server_of(url), cut_after_bytes=after_bytes)) as address:
        yield address


@contextmanager
def slow_uplink(url: str, *, mbps: float) -> Iterator[tuple[str, ThrottledProxy]]:
    """Proxy ``url`` with an uplink of ``mbps`` Mbit/s. Yields the proxy's URL and the proxy, which counts bytes."""
    proxy = ThrottledProxy(_server_of(url), uplink_mbps=mbps)
    with _listening(url, proxy) as address:
        yield address, proxy


def _server_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@contextmanager
def _listening(url: str, proxy: ThrottledProxy) -> Iterator[str]:
    try:
        yield urlunsplit(urlsplit(url)._replace(netloc=f"127.0.0.1:{proxy.port}"))
    finally:
        proxy.close()


class ThrottledProxy:
    """Forwards TCP connections to ``server``, one thread per direction. ``uplink_bytes`` counts bytes to the server.

    ``cut_after_bytes``: after that many response bytes all connections are dropped, once; later connections are not.
    ``uplink_mbps``: the bandwidth towards the server, shared by all connections; None for no limit.
    """

    def __init__(
        self, server: tuple[str, int], *, cut_after_bytes: int | None = None, uplink_mbps: float | None = None
    ) -> None:
        self._server = server
        self._bytes_until_cut = cut_after_bytes
        self._free_at = 0.0  # when the uplink has sent all queued bytes
        self.limit(uplink_mbps)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.uplink_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def limit(self, uplink_mbps: float | None) -> None:
        """Change the bandwidth of the uplink from now on; None for no limit."""
        self._seconds_per_byte = 0.0 if uplink_mbps is None else 8 / (uplink_mbps * 1e6)

    def forward_to(self, url: str) -> None:
        """Forward connections from now on to another server."""
        self._server = _server_of(url)

    def close(self) -> None:
        """Drop all connections and accept no more."""
        # close alone does not wake the thread that blocks in accept
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._drop_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # until the listener is closed
            while True:
                device, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:  # there is no server: neither has the device one
                    device.close()
                    continue
                for end in (device, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open |= {device, server}
                for source, sink, pace in ((device, server, self._up), (server, device, self._down)):
                    threading.Thread(target=self._forward, args=(source, sink, pace), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, pace: Callable[[int], None]) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                pace(len(chunk))
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _up(self, count: int) -> None:
        """Sleep as long as the uplink needs for ``count`` more bytes."""
        with self._lock:
            self.uplink_bytes += count
            self._free_at = max(self._free_at, time.perf_counter()) + count * self._seconds_per_byte
            wait_s = self._free_at - time.perf_counter()
        if self._seconds_per_byte and wait_s > 0:
            time.sleep(wait_s)

    def _down(self, count: int) -> None:
        """Count ``count`` response bytes; drop all connections when the cut is reached."""
        with self._lock:
            if self._bytes_until_cut is None:
                return
            self._bytes_until_cut -= count
            if self._bytes_until_cut > 0:
                return
            self._bytes_until_cut = None
        self._drop_all()

    def _drop_all(self) -> None:
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
