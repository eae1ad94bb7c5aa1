"""A server's proxy that cuts downloads, each in the middle of its body, and notes from where they go on."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOP = {"connection", "transfer-encoding", "keep-alive", "host", "content-length"}


class CuttingProxy(ThreadingHTTPServer):
    """Passes requests on to ``upstream``; the first ``cuts`` bodies below ``part`` of at least ``least_bytes`` are cut.

    ``resumed``: the Range headers of requests below ``part``.
    """

    daemon_threads = True

    def __init__(self, upstream: str, *, part: str, cuts: int, least_bytes: int = 64) -> None:
        self.upstream, self.part, self.cuts, self.least_bytes = urlsplit(upstream).netloc, part, cuts, least_bytes
        self.resumed: list[str] = []
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def takes_cut(self, path: str, size_bytes: int) -> bool:
        """Whether to cut this body; each time one cut less is left."""
        with self.lock:
            cut = self.part in path and self.cuts > 0 and size_bytes >= self.least_bytes
            self.cuts -= cut
            return cut


class _Handler(BaseHTTPRequestHandler):
    server: CuttingProxy

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _pass_on(self, body: bytes | None) -> None:
        if "Range" in self.headers and self.server.part in self.path:
            self.server.resumed.append(self.headers["Range"])
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        try:
            upstream.request(self.command, self.path, body, headers)
            reply = upstream.getresponse()
            data = reply.read()
        except OSError:  # the server is gone
            self.connection.close()
            return
        finally:
            upstream.close()
        self.send_response_only(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if self.server.takes_cut(self.path, len(data)) else data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def cutting(upstream: str, *, part: str, cuts: int) -> Iterator[tuple[str, CuttingProxy]]:
    """Run one; yields its address and itself."""
    proxy = CuttingProxy(upstream, part=part, cuts=cuts)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}", proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
