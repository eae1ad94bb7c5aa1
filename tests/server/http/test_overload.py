"""Attacks on a whole server: what they cost it, and that others are answered meanwhile."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.faults.tools.overload import HealthProbe, closed_by_server, connect, dripping, open_connections
from device_sdk.machine import resident_bytes
from device_sdk.offload.open_inference import InferRequest, NamedTensor, encode_request
from server.http.request_reader import Limits
from server.inference.queue import ASK_AFTER_S

pytestmark = pytest.mark.alone

TIMES_AS_LONG_AS_WHEN_QUIET = 100  # a server that is stuck takes seconds instead of milliseconds
INFER = "/v2/models/tiny:images/infer"
BRIEF = Limits(head_s=0.4, idle_s=0.4, grace_s=0.4, min_bytes_per_s=1000)


def at(server):
    return server.host, server.port


def head(path, length, *, method="POST", more=""):
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def assert_prompt(probe, server):
    """The server answered while it was attacked about as fast as now, without an attack."""
    with HealthProbe(at(server)) as quiet:
        time.sleep(0.3)
    assert len(probe.latencies_ms) >= 2
    assert probe.p95_ms <= TIMES_AS_LONG_AS_WHEN_QUIET * quiet.p95_ms


@pytest.fixture
def serve_large(serve, tmp_path, tiny):
    """Starts servers with a blob of 200 MB: ``serve_large(**settings)`` gives the server and the blob's path."""
    folder = tiny.copy_to(tmp_path / "bundles" / "tiny")
    blob = max((folder / "blobs").iterdir(), key=lambda path: path.stat().st_size)

    def start(**settings):
        server = serve(folder.parent, **settings)
        assert server.ask("/v1/bundles/tiny").status == 200  # its size is checked now, not once it has grown
        os.truncate(blob, 200_000_000)
        return server, f"/v1/bundles/tiny/blobs/{blob.name}"

    return start


@pytest.mark.parametrize("first", [b"GET /health HTTP/1.1\r\nX-Slow: ", head(INFER, 1_000_000)])
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"], ids=["same address", "another"])
def test_health_answers_while_320_connections_drip(serve, tiny, first, source):
    server = serve(tiny.folder)
    with (
        open_connections(at(server), 320, first=first, source=source) as drips,
        dripping(drips),
        HealthProbe(at(server)) as probe,
    ):
        time.sleep(0.8)
    assert_prompt(probe, server)


def test_health_answers_while_many_read_ranges_slowly(serve_large):
    server, address = serve_large()
    ask = f"GET {address} HTTP/1.1\r\nHost: x\r\nRange: bytes=1-\r\n\r\n".encode()
    with open_connections(at(server), 60, first=ask, receive_buffer=4096) as readers:
        assert all(reader.recv(12) == b"HTTP/1.1 206" for reader in readers)
        with HealthProbe(at(server)) as probe:
            time.sleep(0.5)
        whole = server.ask("/v1/bundles/tiny/manifest.json")
    assert_prompt(probe, server)
    assert whole.status == 200


def test_a_pipelined_second_request_holds_no_thread(serve_large):
    server, address = serve_large()
    ask = f"GET {address} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with open_connections(at(server), 60, first=2 * ask, receive_buffer=4096) as readers:
        assert all(reader.recv(12) == b"HTTP/1.1 200" for reader in readers)
        assert server.ask("/v1/bundles/tiny/manifest.json").status == 200
        assert server.ask("/").status == 200


def replies(connection) -> list[tuple[bytes, bytes]]:
    """Status and body of each reply, until the server closes the connection."""
    received, found = b"".join(iter(lambda: connection.recv(65536), b"")), []
    while received:
        start, _, rest = received.partition(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", start.lower()).group(1))
        found.append((start[9:12], rest[:length]))
        received = rest[length:]
    return found


GET, LAST = (f"GET /health HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode() for more in ("", "Connection: close\r\n"))
POST = head("/v1/logs", 2) + b"{}"  # refused by the application, which ends no connection


@pytest.mark.parametrize("piece", [1, 37, 100_000])
def test_pipelined_requests_are_answered_in_order(serve, tiny, piece):
    server = serve(tiny.folder)
    sent = GET + POST + b"\r\n" + GET + POST + LAST
    with connect(at(server)) as connection:
        for first in range(0, len(sent), piece):
            connection.sendall(sent[first : first + piece])
        answers = replies(connection)
    assert [status for status, _ in answers] == [b"200", b"400", b"200", b"400", b"200"]
    assert all(b"status" in body for _, body in answers[::2])


def test_a_hundred_pipelined_requests_are_answered(serve, tiny):
    server = serve(tiny.folder)
    with connect(at(server)) as connection:
        connection.sendall(99 * GET + LAST)
        assert [status for status, _ in replies(connection)] == [b"200"] * 100


def test_what_is_refused_ends_the_pipeline(serve, tiny):
    server = serve(tiny.folder, token="secret")
    with connect(at(server)) as connection:
        connection.sendall(GET + head(INFER, 2) + b"{}" + GET)
        assert [status for status, _ in replies(connection)] == [b"200", b"401"]


@pytest.mark.embedded
def test_a_range_arrives_whole_at_a_fast_reader(serve_large):
    server, address = serve_large()
    reply = server.ask(address, headers={"Range": "bytes=100-150000099"})
    assert (reply.status, len(reply.body)) == (206, 150_000_000)


def test_without_a_token_a_body_is_refused_at_its_head(serve, tiny):
    server = serve(tiny.folder, token="secret")
    for path in (INFER, "/v1/jobs", "/v1/logs"):
        with connect(at(server)) as connection:
            connection.sendall(head(path, 50_000_000))
            reply = b"".join(iter(lambda: connection.recv(65536), b""))
        assert reply.startswith(b"HTTP/1.1 401 ")
        assert b'{"error": ' in reply


def test_a_refused_client_that_goes_on_sending_reads_the_refusal(serve, tiny):
    server = serve(tiny.folder, token="secret")
    with connect(at(server)) as connection:
        connection.sendall(head(INFER, 2_000_000) + bytes(1_000_000))
        time.sleep(0.1)
        connection.sendall(bytes(1_000_000))
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_expecting_100_a_refused_body_is_not_invited(serve, tiny):
    server = serve(tiny.folder, token="secret")
    with connect(at(server)) as connection:
        connection.sendall(head(INFER, 1000, more="Expect: 100-continue\r\n"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")
    with connect(at(server)) as connection:
        connection.sendall(head(INFER, 2, more="Expect: 100-continue\r\nAuthorization: Bearer secret\r\n"))
        assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"", b""),
        (b"GET /health HTTP/1.1\r\nX-Slow: ", b"408"),
        (head(INFER, 1_000_000), b"408"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),  # idle after its reply
    ],
    ids=["silent", "head", "body", "idle"],
)
def test_what_arrives_too_slowly_is_ended(serve, tiny, first, status):
    server = serve(tiny.folder, limits=BRIEF)
    with connect(at(server)) as connection:
        connection.sendall(first)
        connection.settimeout(5)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received[9:12] == status


def test_dripping_does_not_extend_the_deadline(serve, tiny):
    server = serve(tiny.folder, limits=BRIEF)
    with open_connections(at(server), 1, first=head(INFER, 1_000_000)) as [drip], dripping([drip], every_s=0.05):
        assert closed_by_server(drip, within_s=5)


def test_a_reply_that_is_not_read_is_ended(serve_large):
    server, address = serve_large(limits=BRIEF)
    ask = f"GET {address} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with connect(at(server), receive_buffer=4096) as stalled:
        stalled.sendall(ask)
        for _ in range(500):
            if not server.server._server.active_channels:
                break
            time.sleep(0.01)
        assert not server.server._server.active_channels


def test_a_fast_body_and_a_busy_connection_outlive_the_deadlines(serve, tiny):
    server = serve(tiny.folder, limits=BRIEF)
    body = json.dumps({"padding": "x" * 50_000}).encode()
    with connect(at(server)) as connection:
        connection.sendall(head(INFER, len(body)))
        for start in range(0, len(body), 5_000):  # 50 kB/s
            connection.sendall(body[start : start + 5_000])
            time.sleep(0.1)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_gzip_bodies_are_refused_before_they_fill_the_memory(serve, tiny, gated):
    server = serve(tiny.folder, runtime=gated, max_body_bytes=64 * 2**20)
    body, headers = _images(50_000)  # 60 MB
    headers["Content-Encoding"], bomb = "gzip", gzip.compress(body)
    assert len(bomb) < 100_000
    del body
    before = resident_bytes()
    peak = before
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(server.ask, INFER, method="POST", body=bomb, headers=headers) for _ in range(8)]
        while not all(future.done() for future in sent):
            peak = max(peak, resident_bytes())
            time.sleep(0.005)
        statuses = {future.result().status for future in sent}
    assert statuses <= {413, 429}
    assert 429 in statuses  # one client's share holds no more than a few of them
    assert peak - before < 700e6  # eight bodies, whole and decoded, take more than a gigabyte


def test_memory_is_given_back_however_a_request_ends(serve, tiny):
    server = serve(tiny.folder, limits=BRIEF)
    budget = server.server._server.admit.admit._memory
    assert server.ask(INFER, method="POST", body=b"{}").status == 400
    with connect(at(server)) as connection:
        connection.sendall(head(INFER, 1_000_000) + b"x")
        _wait_until(lambda: budget.used_bytes == 3_000_000)
    _wait_until(lambda: budget.used_bytes == 0)  # the client went
    with connect(at(server)) as connection:
        connection.sendall(head(INFER, 1_000_000) + b"x")
        assert closed_by_server(connection, within_s=5)
    assert budget.used_bytes == 0  # the deadline passed


def test_one_client_cannot_reserve_the_memory_of_all(serve, tiny):
    server = serve(tiny.folder)
    with open_connections(at(server), 20, first=head(INFER, 60_000_000)) as greedy:
        statuses = [server_reply(connection) for connection in greedy]
        with connect(at(server), source="127.0.0.3") as other:
            other.sendall(head(INFER, 2) + b"{}")
            assert other.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert statuses.count(b"429") > 15


def server_reply(connection):
    """The status of a refusal; nothing if the server waits for the body."""
    connection.settimeout(0.1)
    try:
        return connection.recv(65536)[9:12]
    except TimeoutError:
        return b""


def test_an_endless_chunk_size_is_refused_at_once(serve, tiny):
    server = serve(tiny.folder)
    with connect(at(server)) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        connection.sendall(b"0" * 10_000)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_a_small_request_does_not_wait_for_a_huge_one(serve, tiny, gated):
    server = serve(tiny.folder, runtime=gated, max_batch=8)
    huge, small = (_images(rows) for rows in (800, 1))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.ask, INFER, method="POST", body=huge[0], headers=huge[1])
        assert gated.started.acquire(timeout=60)
        second = pool.submit(server.ask, INFER, method="POST", body=small[0], headers=small[1])
        _wait_until(lambda: len(server.services.queue) == 2)
        _wait_until(lambda: len(server.services.queue._waiting) == 2)
        gated.gate.set()
        assert second.result(10).status == 200
        at_second = sum(gated.batches)
        assert first.result(20).status == 200
    assert at_second < 400
    assert sum(gated.batches) == 801


def test_too_many_rows_are_refused(serve, tiny):
    body, headers = _images(5)
    reply = serve(tiny.folder, max_rows=4).ask(INFER, method="POST", body=body, headers=headers)
    assert reply.status == 413
    assert "4" in reply.json()["error"]


def test_the_request_of_a_client_that_has_gone_is_not_run(serve, tiny, gated):
    server = serve(tiny.folder, runtime=gated)
    body, headers = _images(1)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ask, INFER, method="POST", body=body, headers=headers)
        assert gated.started.acquire(timeout=60)
        with connect(at(server)) as gone:
            gone.sendall(head(INFER, len(body), more=lines) + body)
            _wait_until(lambda: len(server.services.queue._waiting) == 1)
        time.sleep(ASK_AFTER_S)
        gated.gate.set()
        assert first.result(10).status == 200
    _wait_until(lambda: len(server.services.queue) == 0)
    assert gated.batches == [1]


def test_health_answers_while_inference_is_stuck(serve, tiny, gated):
    server = serve(tiny.folder, runtime=gated, queue_limit=4)
    body, headers = _images(1)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with open_connections(at(server), 60, first=head(INFER, len(body), more=lines) + body) as stuck:
        assert gated.started.acquire(timeout=60)
        refused = sum(server_reply(connection) == b"503" for connection in stuck)
        with HealthProbe(at(server)) as probe:
            time.sleep(0.3)
        assert server.ask("/").status == 200
        gated.gate.set()
    assert_prompt(probe, server)
    assert refused == 56


def test_at_the_limit_of_an_address_the_connection_that_stands_longest_makes_room(serve, tiny):
    server = serve(tiny.folder, limits=Limits(connections_per_address=3))
    with open_connections(at(server), 3) as standing, connect(at(server), source="127.0.0.3") as other:
        with connect(at(server)) as new:
            new.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert new.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert closed_by_server(standing[0], within_s=5)
        other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert other.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert not closed_by_server(standing[2], within_s=0.05)


def test_an_address_whose_connections_are_all_at_work_gets_no_more(serve, tiny, gated):
    server = serve(tiny.folder, runtime=gated, limits=Limits(connections_per_address=2))
    body, headers = _images(1)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with open_connections(at(server), 2, first=head(INFER, len(body), more=lines) + body) as working:
        _wait_until(lambda: len(server.services.queue) == 2)
        with connect(at(server)) as refused:
            assert closed_by_server(refused, within_s=5)
        assert server.ask("/health").status == 200  # from another address
        gated.gate.set()
        assert all(connection.recv(12) == b"HTTP/1.1 200" for connection in working)


def _images(rows):
    """A request with ``rows`` black images: body and headers."""
    images = np.zeros((rows, 20, 20, 3), np.uint8)
    return encode_request(InferRequest((NamedTensor("image", images),), binary_output=True))


def _wait_until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never happened")
