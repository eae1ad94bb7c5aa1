"""Releases and key lists as devices fetch them."""

from __future__ import annotations

import hashlib

import pytest

from tests.contract.signed_files import key_list, release

pytestmark = pytest.mark.replicas(3)


@pytest.fixture
def folder(tiny, tmp_path):
    """A served folder with one bundle."""
    tiny.copy_to(tmp_path / "served" / "tiny")
    return tmp_path / "served"


def put(path, data):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


@pytest.mark.embedded
def test_a_release_is_served_as_it_is_and_anew_when_it_was_renewed(serve, folder):
    server, path = serve(folder), folder / "tiny" / "release.json"
    assert server.ask("/v1/bundles/tiny/release.json").status == 404
    for made in (release(b"one"), release(b"one", signed_at_s=1)):
        path.write_bytes(made)
        reply = server.ask("/v1/bundles/tiny/release.json")
        assert (reply.status, reply.body) == (200, made)
        assert reply.headers["etag"] == f'"{hashlib.sha256(made).hexdigest()}"'
        assert reply.headers["cache-control"] == "no-cache"
    path.unlink()
    assert server.ask("/v1/bundles/tiny/release.json").status == 404


def test_key_lists_are_served_by_number_for_every_bundle_of_the_folder(serve, folder, tiny):
    tiny.copy_to(folder / "other", name="other")
    put(folder / "keys" / "1.json", key_list())
    put(folder / "keys" / "2.json", key_list(2))
    put(folder / "keys" / "3.draft", b"not yet")
    server = serve(folder)
    for name in ("tiny", "other"):
        for number in (1, 2):
            reply = server.ask(f"/v1/bundles/{name}/keys/{number}.json")
            assert (reply.status, reply.body) == (200, key_list(number))
        assert server.ask(f"/v1/bundles/{name}/keys/3.json").status == 404


def test_a_bundle_may_have_key_lists_of_its_own(serve, folder, tiny):
    tiny.copy_to(folder / "other", name="other")
    put(folder / "keys" / "1.json", key_list())
    put(folder / "tiny" / "keys" / "1.json", key_list(releases=["release-9"]))
    server = serve(folder)
    assert server.ask("/v1/bundles/tiny/keys/1.json").body == key_list(releases=["release-9"])
    assert server.ask("/v1/bundles/other/keys/1.json").body == key_list()


def test_a_bundle_that_is_served_alone_has_its_key_lists_in_it(serve, folder):
    put(folder / "tiny" / "keys" / "1.json", key_list())
    assert serve(folder / "tiny").ask("/v1/bundles/tiny/keys/1.json").body == key_list()


@pytest.mark.parametrize("number", ["0", "-1", "01", "1.0", "x", "9" * 11, "9" * 300, "..%2F..%2Fkeys%2F1", "%2e%2e"])
def test_nothing_but_numbers_names_a_key_list(serve, folder, number):
    put(folder / "keys" / "1.json", key_list())
    assert serve(folder).ask(f"/v1/bundles/tiny/keys/{number}.json").status == 404


def test_a_bundle_that_is_not_there_has_no_key_lists(serve, folder):
    put(folder / "keys" / "1.json", key_list())
    assert serve(folder).ask("/v1/bundles/other/keys/1.json").status == 404


@pytest.mark.embedded
@pytest.mark.parametrize("name", ["tiny/release.json", "keys/1.json"])
def test_what_is_larger_than_devices_take_is_not_served(serve, folder, name):
    put(folder / name, b" " * 70_000)
    assert serve(folder).ask(f"/v1/bundles/tiny/{name.removeprefix('tiny/')}").status == 404
    assert serve(folder).ask("/v1/bundles/tiny/manifest.json").status == 200
