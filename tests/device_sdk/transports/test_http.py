from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.errors import UsageError
from device_sdk.transports import Deadlines, make_transport
from device_sdk.transports.http import HttpTransport
from device_sdk.transports.port import read_all

ROOT = Path(__file__).parents[3]
SOON = Deadlines(idle_s=5.0, total_s=10.0)


def heads_after_a_request(transport, server, url):
    with contextlib.closing(transport), transport.send("GET", url, deadlines=SOON, max_bytes=100) as reply:
        read_all(reply)
    return server.requests[-1][0]


def test_a_token_goes_to_its_server(server, reply_bytes):
    server.answer(reply_bytes(b"x"))
    head = heads_after_a_request(make_transport(server.url + "/v1", token="s3cret"), server, server.url + "/other")
    assert b"Authorization: Bearer s3cret" in head


def test_a_token_goes_to_no_other_server(server, reply_bytes):
    server.answer(reply_bytes(b"x"))
    head = heads_after_a_request(make_transport("http://127.0.0.1:1/", token="s3cret"), server, server.url)
    assert b"s3cret" not in head


def test_another_host_name_of_the_same_port_is_another_server(server, reply_bytes):
    server.answer(reply_bytes(b"x"))
    other = f"http://localhost:{server.port}"
    assert b"s3cret" not in heads_after_a_request(make_transport(server.url, token="s3cret"), server, other)


def test_without_a_token_nobody_is_authorized(server, reply_bytes):
    server.answer(reply_bytes(b"x"))
    assert b"Authorization" not in heads_after_a_request(make_transport(server.url), server, server.url)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: 1", "schlüssel", "a\t"])
def test_a_token_that_cannot_be_one_is_refused_and_not_repeated(token):
    with pytest.raises(UsageError) as caught:
        make_transport("http://host/", token=token)
    assert not token or token not in str(caught.value)


def test_a_token_needs_the_server_that_it_is_for():
    with pytest.raises(UsageError):
        HttpTransport(token="s3cret")


def test_a_caller_may_ask_for_the_bytes_as_they_are(server, reply_bytes):
    server.answer(reply_bytes(b"x"))
    with (
        contextlib.closing(make_transport(server.url)) as transport,
        transport.send(
            "GET", server.url, headers={"Accept-Encoding": "identity"}, deadlines=SOON, max_bytes=9
        ) as reply,
    ):
        read_all(reply)
    assert b"Accept-Encoding: identity" in server.requests[0][0]
    assert b"gzip" not in server.requests[0][0]


def test_importing_the_registry_leaves_urllib3_alone():
    script = "import sys, device_sdk.transports, device_sdk.transports.port; print('urllib3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
