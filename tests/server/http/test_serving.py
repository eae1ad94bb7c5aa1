from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask

from server.errors import ListenError
from server.http.serving import SPARE_THREADS, HttpServer, listen, only_loopback, url_of

JSON = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 20, 20, 3], "data": [0] * 1200}]}
INFER = "/v2/models/tiny:images/infer"


def refuses_connections(server):
    for _ in range(500):
        try:
            server.connect().close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:  # it closed while this one was waiting to be let in
            pass
        time.sleep(0.01)
    return False


def test_a_request_in_flight_is_finished_and_nobody_else_let_in(serve, tiny, gated):
    server = serve(tiny.folder, runtime=gated)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, INFER, JSON)
        assert gated.started.acquire(timeout=60)
        server.server.stop()
        assert refuses_connections(server)
        assert server.thread.is_alive()
        gated.gate.set()
        reply = asked.result(10)
    assert reply.status == 200
    assert reply.headers["connection"] == "close"
    server.thread.join(5)
    assert not server.thread.is_alive()


def test_a_request_that_is_still_being_sent_is_finished(serve, tiny):
    server = serve(tiny.folder)
    body = json.dumps(JSON).encode()
    with server.connect() as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body[:100])
        time.sleep(0.1)
        server.server.stop()
        assert refuses_connections(server)
        connection.sendall(body[100:])
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert b'"logits"' in reply


def test_idle_connections_do_not_keep_it_from_ending(serve, tiny):
    server = serve(tiny.folder, drain_s=3600.0)
    idle = http.client.HTTPConnection(server.host, server.port, timeout=60)
    idle.request("GET", "/health")
    idle.getresponse().read()
    silent = server.connect()
    server.stop()
    assert silent.recv(10) == b""
    idle.close()
    silent.close()


def test_what_takes_longer_than_the_drain_is_given_up(serve, tiny, gated, caplog):
    server = serve(tiny.folder, runtime=gated, drain_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, INFER, JSON)
        assert gated.started.acquire(timeout=60)
        server.stop()
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            asked.result(10)
    assert "1 requests were not finished within 0.2 s" in caplog.text


def test_stopping_twice_and_after_the_end_is_fine(serve, tiny):
    server = serve(tiny.folder)
    server.server.stop()
    server.stop()
    server.server.stop()


def test_a_connection_serves_several_requests(serve, tiny):
    server = serve(tiny.folder)
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    ports = set()
    for _ in range(3):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        ports.add(connection.sock.getsockname()[1])
    connection.close()
    assert len(ports) == 1


def test_many_silent_connections_do_not_stop_the_others(serve, tiny):
    server = serve(tiny.folder)
    silent = [server.connect() for _ in range(150)]
    assert server.ask("/health").status == 200
    for connection in silent:
        connection.close()


def test_a_port_in_use_is_told_in_one_line():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError) as caught:
            listen("127.0.0.1", port)
    assert str(port) in str(caught.value)
    assert "in use" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--port" in caught.value.hint


@pytest.mark.parametrize("host", ["192.0.2.1", "host.invalid", "not a host"])
def test_an_address_that_is_not_ours_is_told(host):
    with pytest.raises(ListenError, match="cannot listen on"):
        listen(host, 0)


def test_loopback_and_what_is_beyond():
    with listen("127.0.0.1", 0) as here, listen("0.0.0.0", 0) as everywhere:
        assert only_loopback(here)
        assert not only_loopback(everywhere)
        assert url_of(here) == f"http://127.0.0.1:{here.getsockname()[1]}"


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6():
    try:
        listener = listen("::1", 0)
    except ListenError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with listener:
        assert only_loopback(listener)
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_replies_during_load_are_whole(serve, tiny, tiny_bundle):
    server = serve(tiny.folder)
    blobs = tiny_bundle.blob_sizes()
    wrong = []

    def fetch(which):
        for name, size in list(blobs.items())[which::4]:
            reply = server.ask(f"/v1/bundles/tiny/blobs/{name}")
            if len(reply.body) != size:
                wrong.append(name)

    threads = [threading.Thread(target=fetch, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", "no Host"),
        (
            "POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "both a Content-Length and a Transfer-Encoding",
        ),
        (
            "POST /v1/logs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
            "both a Content-Length and a Transfer-Encoding",
        ),
    ],
)
def test_a_head_that_two_servers_could_read_differently_is_refused(serve, tiny, head, why):
    reply = serve(tiny.folder).raw(head.encode())
    assert reply.startswith(b"HTTP/1.1 400")
    assert why.encode() in reply


def test_http_1_0_needs_no_host(serve, tiny):
    assert serve(tiny.folder).raw(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200")


def test_connections_that_wait_to_be_accepted_are_answered_when_it_stops():
    app, listener = Flask("waiting"), listen("127.0.0.1", 0)
    app.add_url_rule("/", view_func=lambda: "answered")
    server = HttpServer(app, listener, threads=SPARE_THREADS + 1, max_body_bytes=1000, drain_s=10)
    clients = [socket.create_connection(listener.getsockname(), timeout=20) for _ in range(20)]
    for client in clients:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    server.stop()
    server.run()
    for client in clients:
        with client:
            reply = b"".join(iter(lambda client=client: client.recv(65536), b""))
        assert reply.startswith(b"HTTP/1.1 200")
        assert reply.endswith(b"answered")
