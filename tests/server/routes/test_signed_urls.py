"""Blobs that clients fetch from the object store itself, where the setting allows it."""

from __future__ import annotations

import hashlib
import urllib.request

import pytest

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
