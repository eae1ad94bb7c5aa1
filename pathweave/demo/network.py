"""What lies between the demo's devices and its server: a line that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

_PIECE = 4096  # bytes


@contextmanager
def cut_once(url: str, *, after_bytes: int) -> Iterator[str]:
    """A way to the server at ``url`` that breaks down once, ``after_bytes`` into what comes back; yields its URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    line = _Line((parts.hostname, parts.port), after_bytes)
    try:
        yield urlunsplit(parts._replace(netloc=f"127.0.0.1:{line.port}"))
    finally:
        line.close()


class _Line:
    """Carries bytes to and fro until ``after_bytes`` came back; then all connections break, and later ones hold."""

    def __init__(self, server: tuple[str, int], after_bytes: int) -> None:
        self._server = server
        self._left = after_bytes
        self._cut = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
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
                with self._lock:
                    self._open |= {device, server}
                threading.Thread(target=self._carry, args=(device, server, False), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, device, True), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                sink.sendall(piece)
                if counted and self._breaks(len(piece)):
                    self._hang_up()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _breaks(self, count: int) -> bool:
        with self._lock:
            self._left -= count
            breaks, self._cut = self._left <= 0 and not self._cut, self._cut or self._left <= 0
        return breaks

    def _hang_up(self) -> None:
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
