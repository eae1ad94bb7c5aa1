"""Attacks on a server's connections, and a probe that measures if it still answers. Raw sockets and threads."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence

CONNECT_TIMEOUT_S = 5.0
ATTACKER = "127.0.0.2"  # loopback addresses tell clients apart


def connect(address: tuple[str, int], *, source: str = ATTACKER, receive_buffer: int | None = None) -> socket.socket:
    """A connection from the local address ``source``; a small ``receive_buffer`` makes a slow reader slow."""
    connection = socket.socket()
    connection.settimeout(CONNECT_TIMEOUT_S)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.bind((source, 0))
    connection.connect(address)
    return connection


@contextlib.contextmanager
def open_connections(
    address: tuple[str, int],
    count: int,
    *,
    first: bytes = b"",
    source: str = ATTACKER,
    receive_buffer: int | None = None,
) -> Iterator[list[socket.socket]]:
    """``count`` connections that have sent ``first``; those that the server refuses are left out."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.append(connect(address, source=source, receive_buffer=receive_buffer))
                opened[-1].sendall(first)
        yield opened
    finally:
        for connection in opened:
            connection.close()


@contextlib.contextmanager
def dripping(connections: Sequence[socket.socket], *, byte: bytes = b"a", every_s: float = 0.2) -> Iterator[None]:
    """Meanwhile each connection sends one more byte at each interval, as long as the server keeps it."""
    done = threading.Event()

    def drip() -> None:
        while not done.wait(every_s):
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(byte, socket.MSG_DONTWAIT)

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def closed_by_server(connection: socket.socket, *, within_s: float) -> bool:
    """True if the server ends the connection within ``within_s`` seconds of silence; bytes sent before are read."""
    connection.settimeout(within_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


class HealthProbe:
    """Asks ``/health`` over new connections, one after the other, while it is entered."""

    def __init__(self, address: tuple[str, int], *, source: str = "127.0.0.1", timeout_s: float = 2.0) -> None:
        self._address = address
        self._source = source
        self._timeout_s = timeout_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.latencies_ms: list[float] = []  # a time-out counts as such

    def __enter__(self) -> HealthProbe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def p95_ms(self) -> float:
        """The 95th percentile of the latencies."""
        if len(self.latencies_ms) < 2:
            return self._timeout_s * 1e3
        return statistics.quantiles(self.latencies_ms, n=20, method="inclusive")[-1]

    def _work(self) -> None:
        while True:
            began = time.perf_counter()
            answered = self._ask()
            took_ms = (time.perf_counter() - began) * 1e3
            self.latencies_ms.append(took_ms if answered else max(took_ms, self._timeout_s * 1e3))
            if self._done.wait(0.01):
                return

    def _ask(self) -> bool:
        try:
            with connect(self._address, source=self._source) as connection:
                connection.settimeout(self._timeout_s)
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return connection.recv(65536).startswith(b"HTTP/1.1 200")
        except OSError:
            return False
