"""Every version that is served has addresses of its own beside those of the highest one."""

from __future__ import annotations

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.releasing import sign_rollback

pytestmark = pytest.mark.replicas(3)


@pytest.fixture
def versions(serve, tiny, tmp_path):
    """A server of versions 1 and 2; there is a rollback to 1."""
    folder = tmp_path / "bundles"
    folder.mkdir()
    for version in (1, 2):
        tiny.copy_to(folder / f"tiny-{version}", version=version)
    sign_rollback(folder / "tiny-1", None, tiny.private_key, from_version=2, now_s=0, days=1)
    return serve(folder), folder


def test_each_version_is_served_by_its_number_and_the_highest_without_one(versions):
    server, folder = versions
    for place, version in (("", 2), ("/versions/1", 1), ("/versions/2", 2)):
        bundle = Bundle.open(folder / f"tiny-{version}")
        blob = min(bundle.blob_sizes())
        for file in ("manifest.json", "manifest.sig", f"blobs/{blob}"):
            reply = server.ask(f"/v1/bundles/tiny{place}/{file}")
            assert (reply.status, reply.body) == (200, (bundle.folder / file).read_bytes())
    assert "immutable" in server.ask(f"/v1/bundles/tiny/versions/1/blobs/{blob}").headers["cache-control"]


def test_a_rollback_is_served_with_the_version_that_it_leads_to(versions):
    server, folder = versions
    reply = server.ask("/v1/bundles/tiny/versions/1/rollback.json")
    assert reply.body == (folder / "tiny-1" / "rollback.json").read_bytes()
    assert reply.headers["cache-control"] == "no-cache"
    assert server.ask("/v1/bundles/tiny/versions/2/rollback.json").status == 404


@pytest.mark.parametrize("version", ["0", "01", "3", "x", "-1", "99999999999", "1%2F2", ".."])
def test_versions_that_are_not_there_are_not_found(versions, version):
    server, _ = versions
    for file in ("manifest.json", "manifest.sig", "release.json", "rollback.json", "keys/1.json", f"blobs/{'0' * 64}"):
        assert server.ask(f"/v1/bundles/tiny/versions/{version}/{file}").status == 404
    assert server.ask("/v1/bundles/none/versions/1/manifest.json").status == 404


def test_a_version_has_the_blobs_of_its_own_manifest_only(versions):
    server, _ = versions
    assert server.ask(f"/v1/bundles/tiny/versions/1/blobs/{'0' * 64}").status == 404
