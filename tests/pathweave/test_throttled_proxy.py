from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from pathweave.throttled_proxy import cut_once, slow_uplink

pytestmark = pytest.mark.alone

ANSWER = bytes(range(256)) * 400


class Answering:
    """Reads a question up to its newline and answers; a connection at a time per thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while not connection.recv(65536).endswith(b"\n"):
                pass
            connection.sendall(ANSWER)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Answering]:
    answering = Answering()
    yield answering
    answering.close()


def ask(url: str, question: bytes) -> bytes:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(question + b"\n")
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except ConnectionError:
            pass
    return b"".join(parts)


def test_connections_are_dropped_once_and_kept_afterwards(server: Answering) -> None:
    with cut_once(server.url, after_bytes=5000) as url:
        first = ask(url, b"?")
        assert len(first) < len(ANSWER)
        assert ANSWER.startswith(first)
        assert ask(url, b"?") == ANSWER


def test_the_uplink_is_limited_to_its_bandwidth(server: Answering) -> None:
    question = bytes(b"x" * 20_000)
    with slow_uplink(server.url, mbps=1.6) as (url, proxy):  # 200 bytes per millisecond
        started = time.perf_counter()
        assert ask(url, question) == ANSWER
        seconds = time.perf_counter() - started
        assert proxy.uplink_bytes == len(question) + 1
    assert seconds >= 0.1


def test_a_closed_proxy_accepts_no_connections(server: Answering) -> None:
    with slow_uplink(server.url, mbps=100) as (url, _):
        assert ask(url, b"?") == ANSWER
    with pytest.raises(ConnectionError):
        ask(url, b"?")


def test_the_uplink_can_be_limited_and_freed_at_any_time(server):
    question = bytes(30_000)
    with slow_uplink(server.url, mbps=1000.0) as (url, proxy):
        proxy.limit(0.5)
        limited_s = seconds_of(url, question)
        assert limited_s > 0.4
        proxy.limit(None)
        assert min(seconds_of(url, question) for _ in range(3)) < limited_s


def seconds_of(url, question):
    started = time.perf_counter()
    assert ask(url, question) == ANSWER
    return time.perf_counter() - started


def test_without_a_server_connections_end_and_another_server_can_take_over(server):
    gone = Answering()
    with slow_uplink(gone.url, mbps=1000.0) as (url, proxy):
        assert ask(url, b"") == ANSWER
        gone.close()
        assert ask(url, b"") == b""
        proxy.forward_to(server.url)
        assert ask(url, b"") == ANSWER
