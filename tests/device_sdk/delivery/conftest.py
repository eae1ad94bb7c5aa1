"""A real HTTP server for a bundle folder, which can be told to fail, and what a device needs to fetch from it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.download import Delivered, fetch_bundle
from device_sdk.delivery.store import BundleStore
from device_sdk.transports import make_transport
from device_sdk.transports.port import Deadlines, Transport

PREFIX = "/v1/bundles/tiny/"
QUICK = Deadlines(idle_s=0.5, total_s=20.0)


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer. Positions count from the start of the file, whatever range was asked for."""

    cut_at: int | None = None  # the connection ends cleanly before this byte
    reset: bool = False  # … or with a reset
    stall_at: int | None = None  # nothing more comes before this byte
    flip_at: int | None = None
    drip: bool = False  # byte by byte
    status: int | None = None
    ignore_range: bool = False
    wrong_range: bool = False  # 206 from another place
    length_delta: int = 0  # Content-Length is wrong by this


@dataclass(frozen=True)
class Served:
    """One answered request: file, first byte, bytes of the body that were sent, status."""

    path: str
    start: int
    sent: int
    status: int


@dataclass
class BundleServer:
    """Serves ``folder`` below PREFIX. ``faults`` by file name; the first of a list meets the first request."""

    folder: Path
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    before: Callable[[str], None] = lambda path: None  # called with every file name before it is read
    served: list[Served] = field(default_factory=list)
    posts: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    post_answers: list[tuple[int, bytes]] = field(default_factory=list)
    etags: bool = True
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._http.handle_error = lambda request, address: None  # clients that are gone
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        return self.root + PREFIX.rstrip("/")

    def of(self, path: str) -> list[Served]:
        return [one for one in self.served if one.path == path]

    def blob_bytes(self) -> dict[str, int]:
        """Bytes sent of each blob, in all requests together."""
        total: dict[str, int] = {}
        for one in self.served:
            if one.path.startswith("blobs/"):
                total[one.path[6:]] = total.get(one.path[6:], 0) + one.sent
        return total

    def take_fault(self, path: str) -> Fault:
        with self.lock:
            waiting = self.faults.get(path, [])
            return waiting.pop(0) if waiting else Fault()

    def close(self) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()


def _handler(server: BundleServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *arguments: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.posts.append((self.path, {name.lower(): text for name, text in self.headers.items()}, body))
            status, answer = server.post_answers.pop(0)
            self._head(status, {"Content-Length": str(len(answer))})
            self.wfile.write(answer)

        def do_GET(self) -> None:
            if server.over.is_set():  # closed, but this connection is an old one
                self.close_connection = True
                return
            path = self.path.removeprefix(PREFIX)
            server.before(path)
            fault = server.take_fault(path)
            file = server.folder / path
            status = fault.status or (200 if self.path.startswith(PREFIX) and file.is_file() else 404)
            with contextlib.suppress(ConnectionError):
                if status != 200:
                    self._refuse(path, status)
                else:
                    self._send(path, file.read_bytes(), fault)

        def _refuse(self, path: str, status: int) -> None:
            body = json.dumps({"error": f"no {path}"}).encode()
            server.served.append(Served(path, 0, 0, status))
            self._head(status, {"Content-Length": str(len(body)), "Location": "http://127.0.0.1:1/"})
            self.wfile.write(body)

        def _send(self, path: str, data: bytes, fault: Fault) -> None:
            start, status = self._start(path, len(data), fault)
            if status == 416:
                server.served.append(Served(path, start, 0, status))
                self._head(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"})
                return
            headers = {"Content-Length": str(len(data) - start + fault.length_delta)}
            if server.etags:
                headers["ETag"] = f'"{Path(path).name}"'
            if status == 206:
                claimed = start + fault.wrong_range
                headers["Content-Range"] = f"bytes {claimed}-{len(data) - 1}/{len(data)}"
            self._head(status, headers)
            self._body(path, data, start, status, fault)
            if fault.length_delta:
                self.close_connection = True

        def _start(self, path: str, size: int, fault: Fault) -> tuple[int, int]:
            match = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
            condition = self.headers.get("If-Range")
            if not match or fault.ignore_range or condition not in (None, f'"{Path(path).name}"'):
                return 0, 200
            start = int(match[1])
            return start, 206 if start < size else 416

        def _body(self, path: str, data: bytes, start: int, status: int, fault: Fault) -> None:
            """Send the body as far as the fault lets it; the last write comes after the entry in ``served``.

            A client that has the whole body then finds its request there.
            """
            if fault.flip_at is not None:
                data = data[: fault.flip_at] + bytes([data[fault.flip_at] ^ 1]) + data[fault.flip_at + 1 :]
            end = min(at for at in (fault.cut_at, fault.stall_at, len(data)) if at is not None)
            step = 1 if fault.drip else 1 << 20
            pieces = [data[position : min(position + step, end)] for position in range(start, end, step)] or [b""]
            for piece in pieces[:-1]:
                self.wfile.write(piece)
                if fault.drip and server.over.wait(0.02):
                    break
            server.served.append(Served(path, start, max(0, end - start), status))
            self.wfile.write(pieces[-1])
            if fault.stall_at is not None:
                server.over.wait(20)
            if end < len(data):
                self.close_connection = True
                if fault.reset:
                    time.sleep(0.05)  # what was sent arrives first
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.end_headers()

    return Handler


@pytest.fixture
def server(own_bundle) -> Iterator[BundleServer]:
    """Serves a copy of the tiny bundle that a test may alter."""
    with contextlib.closing(BundleServer(own_bundle.folder)) as served:
        yield served


@pytest.fixture
def transport(server) -> Iterator[Transport]:
    with contextlib.closing(make_transport(server.url)) as made:
        yield made


@pytest.fixture
def store(tmp_path) -> BundleStore:
    return BundleStore(tmp_path / "store")


@pytest.fixture
def fault() -> type[Fault]:
    return Fault


@pytest.fixture
def fetch(server, store, transport, own_bundle) -> Callable[..., Delivered]:
    """Fetches from the server with pauses that take no time; remembers what came as good, as a session would."""

    def run(*, good=True, **settings):
        quick = {"deadlines": QUICK, "update_deadlines": QUICK, "sleep": lambda seconds: None}
        settings = {"trust": own_bundle.public_key, **quick, **settings}
        url = settings.pop("url", server.url)
        delivered = fetch_bundle(url, store, transport, **settings)
        opened = Bundle.open(
            delivered.folder, trust=settings["trust"], blobs=delivered.blobs, accepts=settings.get("accepts")
        )
        opened.verify()
        assert (opened.digest, opened.manifest.version) == (delivered.digest, delivered.version)
        if good:
            allow_rollback = settings.get("allow_rollback", False)
            store.remember_good(url, delivered.name, delivered.digest, allow_rollback=allow_rollback)
        return delivered

    return run


@pytest.fixture
def sizes(own_bundle) -> dict[str, int]:
    """Blob sizes by name."""
    return {path.name: path.stat().st_size for path in (own_bundle.folder / "blobs").iterdir()}
