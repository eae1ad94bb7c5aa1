from __future__ import annotations

import contextlib
import gzip

import pytest

from device_sdk.delivery.log_upload import UploadResult, upload_log
from device_sdk.errors import RefusedError
from device_sdk.transports import make_transport

pytestmark = pytest.mark.replicas(3)


@pytest.fixture
def send(serve, tiny):
    """Posts a body as a device's log to a server of its own."""
    server = serve(tiny.folder, max_log_body_bytes=20_000, max_log_line_bytes=2_000, keep_log_lines=100)

    def send(body, *, device="pi-4", **headers):
        named = {"Pathweave-Device": device, **headers} if device is not None else headers
        return server.ask("/v1/logs", method="POST", body=body, headers=named)

    send.server = server
    return send


def stored(send):
    return {device["device"]: device["lines"] for device in send.server.ask("/v1/devices").json()["devices"]}


def test_lines_are_stored_once_however_often_they_are_sent(send, log_line, ndjson):
    body = ndjson(log_line(1), log_line(2))
    assert send(body).json() == {"accepted": 2, "duplicates": 0, "dropped": 0}
    assert send(body).json() == {"accepted": 0, "duplicates": 2, "dropped": 0}
    assert send(ndjson(log_line(2), log_line(3))).json() == {"accepted": 1, "duplicates": 1, "dropped": 0}
    assert stored(send) == {"pi-4": 3}


def test_one_bad_line_and_nothing_of_the_body_is_stored(send, log_line, ndjson):
    reply = send(ndjson(log_line(1), {**log_line(2), "schema": "one"}, log_line(3)))
    assert reply.status == 422
    assert reply.json()["error"].startswith("line 2: ")
    assert stored(send) == {}


def test_too_large_a_line_and_too_large_a_body(send, log_line, ndjson):
    reply = send(ndjson(log_line(1, subnet="o" * 3000)))
    assert (reply.status, reply.json()["error"].split(":")[0]) == (422, "line 1")
    body = ndjson(*(log_line(minute) for minute in range(150)))
    assert len(body) > 20_000
    reply = send(body)
    assert (reply.status, set(reply.json())) == (413, {"error"})
    assert stored(send) == {}


def test_logs_may_come_compressed_but_not_grow_beyond_the_limit(send, log_line, ndjson):
    body = ndjson(log_line(1))
    assert send(gzip.compress(body), **{"Content-Encoding": "gzip"}).json()["accepted"] == 1
    assert send(gzip.compress(bytes(10_000_000)), **{"Content-Encoding": "gzip"}).status == 413
    assert send(body, **{"Content-Encoding": "gzip"}).status == 400
    assert send(body, **{"Content-Encoding": "br"}).status == 415


@pytest.mark.parametrize("device", [None, "", "a b", "../x", "x" * 129])
def test_a_log_without_a_device_is_refused(send, log_line, ndjson, device):
    reply = send(ndjson(log_line()), device=device)
    assert reply.status == 400
    assert "Pathweave-Device" in reply.json()["error"]


def test_the_newest_lines_are_kept(send, log_line, ndjson):
    for start in range(0, 120, 40):
        send(ndjson(*(log_line(minute) for minute in range(start, start + 40))))
    assert stored(send) == {"pi-4": 100}
    assert "02:00" not in send.server.ask("/").body.decode()  # nothing of the future
    assert "01:59" in send.server.ask("/").body.decode()


def test_a_device_uploads_its_log(send, log_line, ndjson, tmp_path):
    path = tmp_path / "adaptation.jsonl"
    path.write_bytes(ndjson(log_line(1), log_line(2, "adapted")) + b'{"cut sho')
    with contextlib.closing(make_transport(send.server.url)) as transport:
        assert upload_log(path, send.server.url, transport, device="laptop") == UploadResult(2, 0)
        assert upload_log(path, send.server.url, transport, device="laptop") == UploadResult(0, 2)
        path.write_bytes(b"no line\n")
        with pytest.raises(RefusedError) as caught:
            upload_log(path, send.server.url, transport, device="laptop")
    assert caught.value.status == 422
    assert "line 1" in str(caught.value)
