"""Blobs that clients fetch from the object store itself, where the setting allows it."""

from __future__ import annotations

import hashlib
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from device_sdk.delivery.blobs import address_elsewhere
from device_sdk.delivery.download import fetch_bundle
from device_sdk.delivery.store import BundleStore
from device_sdk.errors import ProtocolError
from device_sdk.transports import make_transport
from server.settings import Settings
from tests.server.conftest import FleetState, _run

TAKES = {"Pathweave-Takes": "signed-url"}


@pytest.fixture
def start(postgres, s3, tiny, tmp_path):
    """Starts a server of the tiny bundle in S3."""
    started = []

    def start(**settings):
        made = FleetState(postgres, s3).settings(tiny.folder, tmp_path / "publisher")
        started.append(_run(Settings(data_folder=tmp_path / "data", **made, **settings), None, 5.0, None))
        return started[-1]

    yield start
    for running in started:
        running.stop()


@pytest.fixture
def address(tiny_bundle):
    return f"/v1/bundles/tiny/blobs/{next(iter(tiny_bundle.blob_sizes()))}"


def test_a_client_that_takes_signed_urls_is_sent_to_the_store(start, address):
    reply = start(signed_urls=True).ask(address, headers=TAKES)
    assert (reply.status, reply.body, reply.headers["cache-control"]) == (307, b"", "no-store")
    with urllib.request.urlopen(reply.headers["location"]) as stored:
        assert hashlib.sha256(stored.read()).hexdigest() == address.rpartition("/")[2]


@pytest.mark.parametrize(("allowed", "headers"), [(True, {}), (False, TAKES), (True, {"Pathweave-Takes": "other"})])
def test_all_others_get_the_blob_itself(start, address, allowed, headers):
    reply = start(signed_urls=allowed).ask(address, headers=headers)
    assert reply.status == 200
    assert hashlib.sha256(reply.body).hexdigest() == address.rpartition("/")[2]


def test_neither_head_nor_a_blob_that_is_not_there_is_redirected(start, address):
    server = start(signed_urls=True)
    assert server.ask(address, method="HEAD", headers=TAKES).status == 200
    assert server.ask(f"/v1/bundles/tiny/blobs/{'0' * 64}", headers=TAKES).status == 404


def test_a_token_is_needed_first(start, address):
    assert start(signed_urls=True, token="secret").ask(address, headers=TAKES).status == 401


def redirected(server):
    """Blobs that the server sent to the store, by its own count."""
    lines = server.services.metrics.text().decode().splitlines()
    wanted = 'pathweave_requests_total{method="GET",route="/v1/bundles/<name>/blobs/<blob>",status="307"}'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))


def delivered(server, tiny, tmp_path, transport):
    return fetch_bundle(
        f"http://{server.host}:{server.port}/v1/bundles/tiny",
        BundleStore(tmp_path / "store"),
        transport,
        trust=tiny.public_key,
    )


def test_a_device_fetches_blobs_from_the_store(start, tiny, tiny_bundle, tmp_path):
    server = start(signed_urls=True, token="secret")
    origin = f"http://{server.host}:{server.port}"
    found = delivered(server, tiny, tmp_path, make_transport(origin, token="secret"))
    assert found.blobs_fetched == len(tiny_bundle.blob_sizes()) == redirected(server)
    assert found.bytes_fetched == sum(tiny_bundle.blob_sizes().values())


class LostStore:
    """A transport that is sent to a store that is away."""

    def __init__(self, inner):
        self._inner, self.lost = inner, 0

    @contextmanager
    def send(self, method, url, *, headers=None, **rest):
        if "Pathweave-Takes" in (headers or {}):
            yield SimpleNamespace(status=307, headers={"location": "http://127.0.0.1:9/blob"}, chunks=lambda: iter(()))
            return
        self.lost += url.endswith(":9/blob")
        with self._inner.send(method, url, headers=headers, **rest) as reply:
            yield reply

    def close(self):
        self._inner.close()


def test_where_the_store_is_out_of_reach_the_server_itself_sends(start, tiny, tiny_bundle, tmp_path):
    server = start()
    transport = LostStore(make_transport(f"http://{server.host}:{server.port}"))
    found = delivered(server, tiny, tmp_path, transport)
    assert found.blobs_fetched == len(tiny_bundle.blob_sizes()) == transport.lost


@pytest.mark.parametrize(
    ("url", "location"), [("https://a/b", "http://s/b"), ("http://a/b", "file:///etc"), ("http://a/b", "")]
)
def test_a_redirect_leaves_neither_https_nor_http(url, location):
    with pytest.raises(ProtocolError, match="redirects a blob"):
        address_elsewhere(SimpleNamespace(status=307, headers={"location": location}), url)
