from __future__ import annotations

import contextlib
import http.server
import threading
import urllib.error
import urllib.request

import pytest

from benchmarks.faults.tools.fault_proxy import Fault, FaultProxy, behind_proxy


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers a POST with its body."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def echo():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        with FaultProxy(server.server_address[1]) as proxy:
            yield proxy
        server.shutdown()


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_the_body_of_a_request_arrives_whole(echo, size):
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with urllib.request.urlopen(f"{echo.url}/path", data=body, timeout=60) as reply:
        assert reply.read() == body


def test_it_notes_from_which_byte_on_each_path_was_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    with behind_proxy(tmp_path) as proxy:
        for headers in ({}, {"Range": "bytes=7-"}):
            urllib.request.urlopen(urllib.request.Request(f"{proxy.url}/file", headers=headers), timeout=60).close()
        assert (proxy.requests, proxy.starts) == (["/file", "/file"], [0, 7])


def test_each_fault_meets_one_answer(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    with behind_proxy(tmp_path) as proxy:
        proxy.faults["file"] = [Fault("cut", 4), Fault("flip", 0)]
        found = []
        for _ in range(3):
            with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(f"{proxy.url}/file") as reply:
                try:
                    found.append(reply.read())
                except http.client.IncompleteRead as error:
                    found.append(error.partial)
        assert found == [b"0123", b"1123456789", b"0123456789"]
