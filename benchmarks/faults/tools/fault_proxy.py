"""An HTTP proxy in this process that damages answers, and a server for a folder behind it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["cut", "stall", "drip", "flip", "reset", "wrong length"]
_STEP_S = 0.02


@dataclass(frozen=True)
class Fault:
    """Damage to one answer at byte ``at`` of its body.

    ``cut``, ``reset``: the connection ends there; ``stall``: nothing more comes; ``drip``: single bytes from there on;
    ``flip``: one bit is another; ``wrong length``: Content-Length is ``at`` too large.
    """

    kind: Kind
    at: int = 0


class FaultProxy:
    """Forwards requests to ``host:port``, one per connection. ``faults``: by a part of the path, the first list entry
    meets the first request. ``requests``: the paths so far; ``starts``: for each, from which byte on. A context
    manager.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[str] = []
        self.starts: list[int] = []
        self._upstream = (host, port)
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse connections from now on. Idempotent."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over.is_set():
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head, body = _request(client)
            if not head:
                return
            path = head.split(b" ", 2)[1].decode()
            start = re.search(rb"(?i)\r\nrange: *bytes=([0-9]{1,18})-", head)
            fault = self._take(path, int(start[1]) if start else 0)
            answer = self._fetch(re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head), body)
            self._send(client, answer, fault)

    def _take(self, path: str, start: int) -> Fault | None:
        with self._lock:
            self.requests.append(path)
            self.starts.append(start)
            for part, waiting in self.faults.items():
                if part in path and waiting:
                    return waiting.pop(0)
        return None

    def _fetch(self, head: bytes, body: bytes) -> bytes:
        with socket.create_connection(self._upstream) as upstream:
            upstream.sendall(head[:-2] + b"Connection: close\r\n\r\n" + body)
            return b"".join(iter(lambda: upstream.recv(1 << 16), b""))

    def _send(self, client: socket.socket, answer: bytes, fault: Fault | None) -> None:
        head, _, body = answer.partition(b"\r\n\r\n")
        if fault is None:
            client.sendall(answer)
            return
        if fault.kind == "wrong length":
            head = re.sub(rb"(?i)content-length:[^\r]*", b"Content-Length: %d" % (len(body) + fault.at), head)
        elif fault.kind == "flip":
            body = body[: fault.at] + bytes(byte ^ 1 for byte in body[fault.at : fault.at + 1]) + body[fault.at + 1 :]
        whole = fault.kind in ("flip", "wrong length")
        client.sendall(head + b"\r\n\r\n" + (body if whole else body[: fault.at]))
        if fault.kind == "stall":
            self._over.wait(60)
        elif fault.kind == "drip":
            for position in range(fault.at, len(body)):
                if self._over.wait(_STEP_S):
                    return
                client.sendall(body[position : position + 1])
        elif fault.kind == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _request(client: socket.socket) -> tuple[bytes, bytes]:
    """Head, with the blank line, and body; empty if the client has gone."""
    data, wanted = b"", None
    while wanted is None or len(data) < wanted:
        more = client.recv(1 << 16)
        if not more:
            return b"", b""
        data += more
        end = data.find(b"\r\n\r\n")
        if wanted is None and end >= 0:
            length = re.search(rb"(?i)\r\ncontent-length: *([0-9]{1,12})", data[:end])
            wanted = end + 4 + (int(length[1]) if length else 0)
    head = data[: data.index(b"\r\n\r\n") + 4]
    return head, data[len(head) :]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are gone."""


@dataclass
class FolderServer:
    """Serves the files of ``folder`` over HTTP. A context manager."""

    folder: Path
    _http: _Server = field(init=False)

    def __post_init__(self) -> None:
        handler = functools.partial(_Quiet, directory=str(self.folder))
        self._http = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        return self._http.server_address[1]

    def __enter__(self) -> FolderServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextlib.contextmanager
def behind_proxy(folder: Path) -> Iterator[FaultProxy]:
    """A proxy in front of a server for ``folder``."""
    with FolderServer(folder) as server, FaultProxy(server.port) as proxy:
        yield proxy
