"""What every transport must do, over real sockets. A new one is one more entry in ``SCHEMES``."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import ipaddress
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from device_sdk.errors import DeadlineError, ProtocolError, TransferError, UsageError
from device_sdk.transports import TRANSPORTS, Deadlines, make_transport
from device_sdk.transports.port import read_all

SCHEMES = ("http", "https")
SOON = Deadlines(idle_s=60.0, total_s=120.0)


def write_certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 with its key, in one PEM file: an authority of its own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=1)
    )
    builder = builder.add_extension(address, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "authority.pem"
    path.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls"))


def encrypt(server, certificate: Path) -> None:
    server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.tls.load_cert_chain(certificate)


@pytest.fixture(params=SCHEMES)
def transport(request, server, certificate, monkeypatch):
    if request.param == "https":
        encrypt(server, certificate)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # as an operator would
    with contextlib.closing(make_transport(server.url)) as made:
        yield made


def fetch(transport, url, *, deadlines=SOON, max_bytes=1_000_000, **rest):
    with transport.send(rest.pop("method", "GET"), url, deadlines=deadlines, max_bytes=max_bytes, **rest) as reply:
        return reply.status, read_all(reply)


def test_every_registered_transport_is_tested_here():
    assert set(SCHEMES) == set(TRANSPORTS)


def test_an_unknown_scheme_is_a_usage_error_that_names_the_known_ones():
    with pytest.raises(UsageError, match="gopher") as caught:
        make_transport("gopher://host/")
    assert "https" in caught.value.hint


def test_a_body_arrives_with_its_status_and_headers_in_lower_case(transport, server, reply_bytes):
    server.answer(reply_bytes(b"hello", status="206 Partial Content", ETag='"x"'))
    with transport.send("GET", server.url + "/a?b=c", deadlines=SOON, max_bytes=5) as reply:
        assert (reply.status, reply.headers["etag"]) == (206, '"x"')
        assert read_all(reply) == b"hello"
    assert server.requests[0][0].startswith(b"GET /a?b=c HTTP/1.1\r\n")


def test_a_body_is_sent_with_its_headers(transport, server, reply_bytes):
    server.answer(reply_bytes(b"{}"))
    body = bytes(range(256)) * 4000
    fetch(transport, server.url, method="POST", body=body, headers={"Pathweave-Device": "one"})
    head, received = server.requests[0]
    assert b"Pathweave-Device: one" in head
    assert received == body


@pytest.mark.parametrize("status", ["204 No Content", "302 Found", "404 Not Found", "500 Oops"])
def test_any_status_is_a_reply_and_no_redirect_is_followed(transport, server, reply_bytes, status):
    server.answer(reply_bytes(status=status, Location="/elsewhere"))
    assert fetch(transport, server.url) == (int(status[:3]), b"")
    assert len(server.requests) == 1


def test_one_connection_serves_one_request_after_the_other(transport, server, reply_bytes):
    server.answer(*[reply_bytes(b"x")] * 3)
    for _ in range(3):
        assert fetch(transport, server.url) == (200, b"x")
    assert server.connections == 1


def test_a_reply_that_was_not_read_does_not_leak_into_the_next(transport, server, reply_bytes):
    server.answer(reply_bytes(b"first" * 100_000))
    with transport.send("GET", server.url, deadlines=SOON, max_bytes=1_000_000):
        pass
    server.answer(reply_bytes(b"second"))
    assert fetch(transport, server.url) == (200, b"second")


def test_threads_get_their_own_answers(transport, server):
    def script(caller):
        while (head := caller.read_request()[0]) != b"":
            path = head.split()[1]
            caller.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path))

    server.script = script
    paths = [f"/{number}" for number in range(100)]
    with ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(lambda path: fetch(transport, server.url + path)[1].decode(), paths))
    assert bodies == paths


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_body_of_exactly_the_limit_fits_and_one_byte_more_is_refused(transport, server, reply_bytes, encoding):
    for size in (1000, 1001):
        data = bytes(size)
        packed = gzip.compress(data) if encoding == "gzip" else data
        server.answer(reply_bytes(packed, Content_Encoding=encoding))
        if size == 1000:
            assert fetch(transport, server.url, max_bytes=1000)[1] == data
        else:
            with pytest.raises(ProtocolError, match="more than the 1000 bytes"):
                fetch(transport, server.url, max_bytes=1000)


def test_a_packed_body_that_blows_up_is_stopped_at_the_limit(transport, server, reply_bytes):
    server.answer(reply_bytes(gzip.compress(bytes(300_000_000), compresslevel=1), Content_Encoding="gzip"))
    received: list[int] = []
    with (
        transport.send("GET", server.url, deadlines=SOON, max_bytes=1_000_000) as reply,
        pytest.raises(ProtocolError),
    ):
        received.extend(map(len, reply.chunks()))
    assert sum(received) <= 1_000_000


def test_a_chunked_body_has_the_same_limit(transport, server):
    body = b"".join(b"%x\r\n%s\r\n" % (600, bytes(600)) for _ in range(2)) + b"0\r\n\r\n"
    server.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert fetch(transport, server.url, max_bytes=1200) == (200, bytes(1200))
    with pytest.raises(ProtocolError):
        fetch(transport, server.url, max_bytes=1199)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"text" * 9)[:10],
    ],
    ids=["cut body", "cut chunk", "no last chunk", "cut gzip"],
)
def test_a_body_that_is_cut_is_a_transfer_error(transport, server, reply):
    server.answer(reply)
    with pytest.raises(TransferError):
        fetch(transport, server.url)


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Encoding: gzip\r\n\r\nnone",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Encoding: br\r\n\r\nnone",
        b"HTTP/1.1 200 OK\r\nContent-Length: 27\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"text") + b"abc",
    ],
    ids=["not HTTP", "no status", "long header", "many headers", "not gzip", "other encoding", "bytes after gzip"],
)
def test_what_breaks_the_protocol_is_a_protocol_error(transport, server, reply):
    server.answer(reply)
    with pytest.raises(ProtocolError):
        fetch(transport, server.url)


def test_no_server_is_a_transfer_error_with_a_hint(transport, server):
    url = server.url
    server.close()
    with pytest.raises(TransferError, match="no connection") as caught:
        fetch(transport, url)
    assert caught.value.hint


@pytest.mark.parametrize("after_head", [False, True])
def test_a_reset_connection_is_a_transfer_error(transport, server, after_head):
    def script(caller):
        caller.read_request()
        if after_head:
            caller.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
            caller.wait(0.05)
        caller.reset()

    server.script = script
    with pytest.raises(TransferError):
        fetch(transport, server.url)


def silent(caller):
    caller.read_request()
    caller.wait(10)


def stalls_in_the_body(caller):
    caller.read_request()
    caller.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    caller.wait(10)


def drips(text: bytes):
    def script(caller):
        caller.read_request()
        for letter in text:
            if caller.over.is_set():
                return
            caller.write(bytes([letter]))
            caller.wait(0.05)

    return script


def never_reads(caller):
    caller.wait(10)


@pytest.mark.parametrize("script", [silent, stalls_in_the_body, never_reads])
def test_a_server_that_goes_quiet_is_given_up_after_the_idle_deadline(transport, server, script):
    server.script = script
    body = bytes(20_000_000 if script is never_reads else 10)
    with pytest.raises(DeadlineError):
        fetch(transport, server.url, method="POST", body=body, deadlines=Deadlines(0.3, 3600.0))


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 100,
        b"HTTP/1.1 200 OK\r\n" + b"X-Header: of a long head\r\n" * 50,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 200,
    ],
    ids=["body", "head", "size of a chunk"],
)
def test_a_server_that_drips_is_given_up_after_the_total_deadline(transport, server, text):
    head, split, rest = text.partition(b"\r\n\r\n")
    server.script = drips(text)
    if split and b"long head" not in head:

        def script(caller):
            caller.read_request()
            caller.write(head + split)
            for letter in rest:
                if caller.over.is_set():
                    return
                caller.write(bytes([letter]))
                caller.wait(0.05)

        server.script = script
    with pytest.raises(DeadlineError):
        fetch(transport, server.url, deadlines=Deadlines(60.0, 0.5))


def test_dropping_idle_connections_twice_does_no_harm(transport, server, reply_bytes):
    server.answer(reply_bytes(b"x"))
    fetch(transport, server.url)
    transport.close()
    transport.close()
    assert fetch(transport, server.url) == (200, b"x")


def test_a_connection_that_the_server_closed_while_idle_is_replaced(transport, server, reply_bytes):
    closed = threading.Event()

    def script(caller):
        caller.read_request()
        caller.write(reply_bytes(b"x"))
        closed.set()

    server.script = script
    fetch(transport, server.url)
    assert closed.wait(5)
    time.sleep(0.05)
    assert fetch(transport, server.url) == (200, b"x")
    assert server.connections == 2


def test_a_pooled_connection_that_the_server_closes_on_a_new_request_is_replaced(transport, server, reply_bytes):
    """A server that gives up an idle connection and a request to it may cross on the way."""
    turn = iter(range(100))

    def script(caller):
        for _ in range(1 if next(turn) == 0 else 2):
            caller.read_request()
            caller.write(reply_bytes(b"x"))
        caller.read_request()
        caller.reset()

    server.script = script
    for _ in range(4):
        assert fetch(transport, server.url, method="POST", body=b"y") == (200, b"x")
    assert server.connections == 3


def test_a_fresh_connection_that_is_closed_is_not_tried_again(transport, server):
    def script(caller):
        caller.read_request()
        caller.reset()

    server.script = script
    with pytest.raises(TransferError):
        fetch(transport, server.url)
    assert server.connections == 1


def test_an_unread_reply_gives_its_connection_up_at_once(transport, server, reply_bytes):
    gone = threading.Event()

    def script(caller):
        caller.read_request()
        caller.write(reply_bytes(b"begin", Content_Length="1000"))
        if caller.read_request() == (b"", b""):
            gone.set()

    server.script = script
    with transport.send("GET", server.url, deadlines=SOON, max_bytes=1_000_000) as reply:
        pass
    assert gone.wait(5)
    assert reply.status == 200


def reads_slowly(caller):
    """2 MB/s at first, little of it buffered; what is left after half of it at once, then an answer."""
    caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    left = 8_000_000
    while left > 0 and not caller.over.is_set():
        left -= len(caller.sock.recv(20_000))
        if left > 4_000_000:
            caller.wait(0.01)
    caller.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")


def test_a_slow_line_is_not_an_idle_one(transport, server):
    server.script = reads_slowly
    idle_s, started = 1.5, time.monotonic()
    answer = fetch(transport, server.url, method="POST", body=bytes(8_000_000), deadlines=Deadlines(idle_s, 30.0))
    assert answer == (200, b"done")
    assert time.monotonic() - started > idle_s


def test_a_server_that_reads_slowly_is_given_up_after_the_total_deadline(transport, server):
    server.script = reads_slowly
    with pytest.raises(DeadlineError):
        fetch(transport, server.url, method="POST", body=bytes(8_000_000), deadlines=Deadlines(60.0, 0.6))


def test_a_certificate_that_nobody_vouches_for_is_refused(server, certificate, reply_bytes):
    encrypt(server, certificate)
    server.answer(reply_bytes(b"x"))
    with contextlib.closing(make_transport(server.url, token="secret")) as transport, pytest.raises(TransferError) as e:
        fetch(transport, server.url)
    assert "certificate" in str(e.value)
    assert server.requests == []
