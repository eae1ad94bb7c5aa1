from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from device_sdk.data.preprocessing import prepare
from device_sdk.offload.open_inference import (
    HEADER_LENGTH,
    InferRequest,
    NamedTensor,
    RequestedOutput,
    decode_response,
    encode_request,
)
from device_sdk.runtimes import OnnxRuntime

INFER = "/v2/models/tiny/infer"


@pytest.fixture(scope="session")
def tensors(tiny, tiny_bundle):
    return prepare(tiny.images[:4], tiny_bundle.manifest.preprocessing, input_shape=(3, 20, 20))


@pytest.fixture(scope="session")
def expected(tensors, tiny_bundle):
    stretch = tiny_bundle.stretch(tiny_bundle.supernet.original.edges)
    return OnnxRuntime(threads=1).load(stretch).run([tensors])[0]


@pytest.fixture(scope="session")
def binary(tensors):
    """A request with binary tensors: body and headers."""
    request = InferRequest((NamedTensor("input", tensors),), (RequestedOutput("logits", True),), id="one")
    return encode_request(request)


@pytest.fixture(scope="session")
def plain(tensors):
    """A request in JSON alone."""
    return encode_request(InferRequest((NamedTensor("input", tensors),)), binary=False)[0]


def infer(server, body, headers=None, address=INFER):
    return server.ask(address, method="POST", body=body, headers=headers or {})


def logits(reply):
    length = reply.headers.get(HEADER_LENGTH.lower())
    decoded = decode_response(reply.body, header_length=None if length is None else int(length))
    return decoded.outputs[0].data


def test_json_and_binary_give_the_same(server, binary, plain, expected):
    for reply in (infer(server, *binary), infer(server, plain)):
        assert reply.status == 200
        np.testing.assert_allclose(logits(reply), expected, atol=1e-5)
    assert json.loads(infer(server, plain).body)["model_name"] == "tiny"


def test_the_id_comes_back(server, binary):
    reply = infer(server, *binary)
    assert json.loads(reply.body[: int(reply.headers[HEADER_LENGTH.lower()])])["id"] == "one"


def test_without_outputs_the_request_says_how_they_travel(server, tensors, expected):
    request = InferRequest((NamedTensor("input", tensors),), binary_output=True)
    reply = infer(server, *encode_request(request))
    assert reply.headers["content-type"] == "application/octet-stream"
    np.testing.assert_allclose(logits(reply), expected, atol=1e-5)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_in_and_out(server, binary, expected, encoding, pack):
    body, headers = binary
    reply = infer(server, pack(body), {**headers, "Content-Encoding": encoding, "Accept-Encoding": encoding})
    assert reply.headers["content-encoding"] == encoding
    unpacked = gzip.decompress(reply.body) if encoding == "gzip" else zlib.decompress(reply.body)
    length = int(reply.headers[HEADER_LENGTH.lower()])
    np.testing.assert_allclose(decode_response(unpacked, header_length=length).outputs[0].data, expected, atol=1e-5)


@pytest.mark.parametrize("accepted", ["identity", "br", "gzip;q=0", ""])
def test_a_client_that_asks_for_nothing_we_know_gets_it_plain(server, plain, accepted):
    reply = infer(server, plain, {"Accept-Encoding": accepted})
    assert "content-encoding" not in reply.headers
    assert reply.status == 200


def test_requests_may_come_in_chunks(server, plain, expected):
    pieces = [plain[at : at + 1000] for at in range(0, len(plain), 1000)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    reply = server.raw(head + body)
    assert reply.startswith(b"HTTP/1.1 200")


def refused(reply, status, *words):
    assert reply.status == status, reply.body
    error = reply.json()
    assert set(error) == {"error"}
    assert "\n" not in error["error"]
    assert all(word in error["error"] for word in words), error


def test_trailing_bytes_and_too_few_are_400(server, binary):
    body, headers = binary
    refused(infer(server, body + b"x", headers), 400, "1 bytes follow")
    refused(infer(server, body[:-1], headers), 400, "cut short")


@pytest.mark.parametrize("length", ["10000000", "-1", "abc", "1e3", "9" * 30, "", "0"])
def test_a_wrong_header_length_is_400(server, binary, length):
    refused(infer(server, binary[0], {HEADER_LENGTH: length}), 400)


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe\x00", b'{"inputs": ' + b"[" * 100_000])
def test_what_is_not_a_request_is_400(server, body):
    refused(infer(server, body), 400)


def test_wrong_names_types_and_shapes_are_400(server, tensors):
    def asked(data, name="input", outputs=()):
        return encode_request(InferRequest((NamedTensor(name, data),), outputs))

    refused(infer(server, *asked(tensors, name="x")), 400, "'x'")
    refused(infer(server, *asked(tensors.astype(np.float64))), 400, "FP64")
    refused(infer(server, *asked(tensors[0])), 400, "shape")
    refused(infer(server, *asked(tensors[:0])), 400, "at least one")
    refused(infer(server, *asked(tensors, outputs=(RequestedOutput("y", False),))), 400, "'y'")


def test_an_answer_that_json_cannot_hold_is_400_and_travels_as_bytes(server, tensors):
    wrong = np.full_like(tensors, np.nan)
    request = InferRequest((NamedTensor("input", wrong),))
    refused(infer(server, *encode_request(request)), 400, "NaN")
    reply = infer(server, *encode_request(InferRequest(request.inputs, binary_output=True)))
    assert np.isnan(logits(reply)).any()


@pytest.mark.parametrize(
    "model", ["none", "none:images", "tiny:", "tiny:images:images", ":images", "tiny%2fx", "..", "%00"]
)
def test_unknown_models_are_404(server, plain, model):
    for address, method in ((f"/v2/models/{model}", "GET"), (f"/v2/models/{model}/infer", "POST")):
        reply = server.ask(address, method=method, body=plain if method == "POST" else None)
        refused(reply, 404)


def test_unknown_versions_are_404(server, plain):
    assert server.ask("/v2/models/tiny/versions/1").json()["name"] == "tiny"
    assert server.ask("/v2/models/tiny/versions/1/ready").status == 200
    for version in ("2", "01", "latest", "-1"):
        refused(server.ask(f"/v2/models/tiny/versions/{version}"), 404)
        refused(server.ask(f"/v2/models/tiny/versions/{version}/ready"), 404)
        refused(infer(server, plain, address=f"/v2/models/tiny/versions/{version}/infer"), 404)


def test_a_body_over_the_limit_is_413(server):
    refused(infer(server, bytes(600_000)), 413)


def test_a_body_far_over_the_limit_is_refused_unread(server, plain):
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n".encode()
    reply = server.raw(head)
    assert reply.startswith(b"HTTP/1.1 413")
    assert b'{"error": ' in reply
    endless = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(endless + b"fffff\r\n" + bytes(0xFFFFF))
        assert connection.recv(100).startswith(b"HTTP/1.1 413")  # if it comes before the reset
    assert infer(server, plain).status == 200


def test_json_over_its_limit_is_413_and_says_what_to_do(server):
    refused(infer(server, b" " * 400_000), 413, "as bytes")


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_bomb_is_413(server, encoding, pack):
    refused(infer(server, pack(bytes(50_000_000)), {"Content-Encoding": encoding}), 413, "decompressed")


def test_compressed_wrongly_is_400_and_unknown_is_415(server, plain):
    refused(infer(server, plain, {"Content-Encoding": "gzip"}), 400)
    refused(infer(server, gzip.compress(plain)[:-5], {"Content-Encoding": "gzip"}), 400, "truncated")
    refused(infer(server, plain, {"Content-Encoding": "br"}), 415)


def test_a_body_cut_short_ends_its_connection_and_nothing_else(server, plain):
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(plain)}\r\n\r\n".encode()
    assert server.raw(head + plain[:100], end=True) == b""
    assert infer(server, plain).status == 200


def test_garbage_instead_of_http_is_answered_and_ends_nothing(server, plain):
    for garbage in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/9.9\r\nA B\r\n\r\n", b"\r\n\r\n\r\n"):
        server.raw(garbage, end=True)
    assert infer(server, plain).status == 200


def test_a_client_that_goes_on_slowly_does_not_stop_others(server, plain):
    with server.connect() as slow:
        slow.sendall(f"POST {INFER} HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n".encode())
        assert infer(server, plain).status == 200
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.recv(1)  # it was neither answered nor given up


def test_a_full_queue_is_503_with_retry_after_and_health_answers(serve, tiny, gated, plain):
    server = serve(tiny.folder, runtime=gated, queue_limit=3)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(infer, server, plain) for _ in range(3)]
        assert gated.started.acquire(timeout=60)
        for _ in range(500):
            if server.ask("/health").json()["queue_length"] == 3:
                break
            time.sleep(0.01)
        refusal = infer(server, plain)
        refused(refusal, 503)
        assert refusal.headers["retry-after"] == "1"
        for address in ("/health", "/v2/health/live", "/v2/health/ready", "/v1/bundles", "/"):
            assert server.ask(address).status == 200
        gated.gate.set()
        assert [future.result(10).status for future in asked] == [200, 200, 200]
    assert infer(server, plain).status == 200


def test_a_greedy_client_is_429_with_retry_after(serve, tiny, gated, plain):
    server = serve(tiny.folder, runtime=gated, queue_limit=3, client_share=1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(infer, server, plain)
        assert gated.started.acquire(timeout=60)
        refusal = infer(server, plain)
        refused(refusal, 429)
        assert refusal.headers["retry-after"] == "1"
        gated.gate.set()
        assert asked.result(10).status == 200


def test_many_clients_at_once_get_their_own_answers(serve, tiny, tiny_bundle):
    server = serve(tiny.folder)
    every = prepare(tiny.images, tiny_bundle.manifest.preprocessing, input_shape=(3, 20, 20))
    stretch = tiny_bundle.stretch(tiny_bundle.supernet.original.edges)
    wanted = OnnxRuntime(threads=1).load(stretch).run([every])[0]
    failures = []

    def ask(start):
        for at in range(start, len(every), 8):
            reply = infer(server, *encode_request(InferRequest((NamedTensor("input", every[at : at + 1]),))))
            if reply.status != 200 or not np.allclose(logits(reply), wanted[at : at + 1], atol=1e-5):
                failures.append(at)

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
