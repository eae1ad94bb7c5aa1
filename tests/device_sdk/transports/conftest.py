"""A server that answers with whatever bytes a test writes: raw sockets, so that it may break every rule."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

PATIENCE_S = 10.0

Script = Callable[["Caller"], None]


@dataclass
class Caller:
    """One accepted connection, as a script sees it."""

    sock: socket.socket
    over: threading.Event
    rest: bytes = b""

    def read_request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request; an empty head when the client has gone."""
        while b"\r\n\r\n" not in self.rest:
            more = self.sock.recv(65536)
            if not more:
                return b"", b""
            self.rest += more
        head, _, body = self.rest.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += self.sock.recv(65536)
        self.rest = body[length:]
        return head, body[:length]

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than the test."""
        self.over.wait(seconds)

    def reset(self) -> None:
        """Close with a reset instead of an end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@dataclass
class ScriptedServer:
    """Runs ``script`` for every connection. ``requests`` are the heads and bodies of ``answering`` scripts."""

    script: Script | None = None
    tls: ssl.SSLContext | None = None
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    connections: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def answer(self, *replies: bytes) -> None:
        """Every connection answers its requests with ``replies`` in turn, then closes."""

        def script(caller: Caller) -> None:
            for reply in replies:
                request = caller.read_request()
                if request == (b"", b""):
                    return
                self.requests.append(request)
                caller.write(reply)

        self.script = script

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError):
            if self.tls:
                sock = self.tls.wrap_socket(sock, server_side=True)
            with sock:
                self.script(Caller(sock, self.over))

    def close(self) -> None:
        self.over.set()
        with contextlib.suppress(OSError):  # closed by the test already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    with contextlib.closing(scripted):
        yield scripted


@pytest.fixture
def reply_bytes() -> Callable[..., bytes]:
    """Writes a reply with a right Content-Length, unless ``headers`` has another."""

    def write(body: bytes = b"", *, status: str = "200 OK", **headers: str) -> bytes:
        fields = {"Content-Length": str(len(body)), **{name.replace("_", "-"): text for name, text in headers.items()}}
        head = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
        return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body

    return write
