from __future__ import annotations

import hashlib
import shutil

import pytest

from device_sdk.bundles.bundle import Bundle

pytestmark = pytest.mark.replicas(3)


@pytest.fixture(scope="session")
def blob(tiny):
    """The largest blob: its name and its bytes."""
    path = max((tiny.folder / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    return path.name, path.read_bytes()


def test_bundles_are_listed_and_described(server, tiny, tiny_bundle):
    sizes = tiny_bundle.blob_sizes()
    manifest = (tiny.folder / "manifest.json").read_bytes()
    expected = {
        "name": "tiny",
        "version": 1,
        "digest": hashlib.sha256(manifest).hexdigest(),
        "signed": True,
        "size_bytes": len(manifest) + sum(sizes.values()),
    }
    assert server.ask("/v1/bundles").json() == {"bundles": [expected]}
    assert server.ask("/v1/bundles/tiny").json() == {**expected, "blobs": sizes}
    assert server.ask("/v1/bundles/tiny/").json()["name"] == "tiny"


def test_a_bundle_that_was_fetched_opens(server, tiny, tmp_path):
    (tmp_path / "blobs").mkdir()
    for name in ("manifest.json", "manifest.sig", *(f"blobs/{blob}" for blob in Bundle.open(tiny.folder).blob_sizes())):
        reply = server.ask(f"/v1/bundles/tiny/{name}")
        assert reply.status == 200
        (tmp_path / name).write_bytes(reply.body)
    fetched = Bundle.open(tmp_path, trust=tiny.public_key)
    fetched.verify()
    assert fetched.manifest.name == "tiny"


def test_etags_are_digests(server, tiny, blob):
    for address, data in {
        "manifest.json": (tiny.folder / "manifest.json").read_bytes(),
        "manifest.sig": (tiny.folder / "manifest.sig").read_bytes(),
        f"blobs/{blob[0]}": blob[1],
    }.items():
        reply = server.ask(f"/v1/bundles/tiny/{address}")
        assert reply.body == data
        assert reply.headers["etag"] == f'"{hashlib.sha256(data).hexdigest()}"'
        again = server.ask(f"/v1/bundles/tiny/{address}", headers={"If-None-Match": reply.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        other = server.ask(f"/v1/bundles/tiny/{address}", headers={"If-None-Match": '"other"'})
        assert (other.status, other.body) == (200, data)


def test_blobs_may_be_kept_for_ever_and_manifests_are_asked_for_again(server, blob):
    assert "immutable" in server.ask(f"/v1/bundles/tiny/blobs/{blob[0]}").headers["cache-control"]
    for name in ("manifest.json", "manifest.sig"):
        assert server.ask(f"/v1/bundles/tiny/{name}").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    ("asked", "start", "end"), [("bytes=0-9", 0, 10), ("bytes=100-", 100, None), ("bytes=-7", -7, None)]
)
def test_ranges_are_parts(server, blob, asked, start, end):
    name, data = blob
    reply = server.ask(f"/v1/bundles/tiny/blobs/{name}", headers={"Range": asked})
    assert (reply.status, reply.body) == (206, data[start:end])
    first = start % len(data)
    assert reply.headers["content-range"] == f"bytes {first}-{first + len(reply.body) - 1}/{len(data)}"


def test_a_range_counts_only_for_the_same_bytes(server, blob):
    name, data = blob
    address = f"/v1/bundles/tiny/blobs/{name}"
    same = server.ask(address, headers={"Range": "bytes=5-", "If-Range": f'"{name}"'})
    other = server.ask(address, headers={"Range": "bytes=5-", "If-Range": '"of another version"'})
    assert (same.status, same.body) == (206, data[5:])
    assert (other.status, other.body) == (200, data)


def test_a_range_beyond_the_end_is_416_and_tells_the_size(server, blob):
    name, data = blob
    reply = server.ask(f"/v1/bundles/tiny/blobs/{name}", headers={"Range": f"bytes={len(data)}-"})
    assert reply.status == 416
    assert reply.headers["content-range"] == f"bytes */{len(data)}"
    assert set(reply.json()) == {"error"}


def test_head_tells_the_size_alone(server, blob):
    reply = server.ask(f"/v1/bundles/tiny/blobs/{blob[0]}", method="HEAD")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-length"] == str(len(blob[1]))


@pytest.mark.parametrize(
    "address",
    [
        "/v1/bundles/none",
        "/v1/bundles/none/manifest.json",
        "/v1/bundles/tiny/other.json",
        "/v1/bundles/tiny/packaging.json",
        "/v1/bundles/tiny/blobs/",
        "/v1/bundles/tiny/blobs/" + "0" * 64,
        "/v1/bundles/tiny/blobs/" + "A" * 64,
        "/v1/bundles/tiny/blobs/manifest.json",
        "/v1/bundles/tiny/blobs/../manifest.json",
        "/v1/bundles/tiny/blobs/..%2fmanifest.json",
        "/v1/bundles/tiny/blobs/%2e%2e%2fmanifest.json",
        "/v1/bundles/tiny/blobs/..%5cmanifest.json",
        "/v1/bundles/../../key",
        "/v1/bundles/..%2f..%2fkey/manifest.json",
        "/v1/bundles/%2e%2e/manifest.json",
        "/v1/bundles/./manifest.json",
        "/v1/bundles//tiny/manifest.json",
        "/v1/bundles/tiny%00/manifest.json",
        "/v1/bundles/tiny%2fblobs",
        "/v1/bundles/" + "x" * 5000,
        "/v1/bundles/%ff%fe",
    ],
)
def test_an_address_with_a_trick_in_it_leads_nowhere(server, address):
    reply = server.raw(f"GET {address} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    status = reply.split(b" ", 2)[1]
    assert status in (b"404", b"400")
    assert b'{"error":' in reply
    assert b"PRIVATE" not in reply


def test_a_bare_nul_in_an_address_is_refused(server):
    reply = server.raw(b"GET /v1/bundles/ti\x00ny HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert reply.split(b" ", 2)[1] in (b"404", b"400")


def test_an_unsigned_bundle_has_no_signature_to_fetch(serve, tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "bundles" / "tiny")
    (tmp_path / "bundles" / "tiny" / "manifest.sig").unlink()
    server = serve(tmp_path / "bundles")
    assert server.ask("/v1/bundles/tiny").json()["signed"] is False
    reply = server.ask("/v1/bundles/tiny/manifest.sig")
    assert reply.status == 404
    assert reply.json()["error"] == "the bundle tiny is not signed"


@pytest.mark.embedded
def test_a_bundle_that_is_replaced_on_disk_is_served_without_a_restart(serve, tiny, tmp_path):
    served = tiny.copy_to(tmp_path / "bundles" / "tiny")
    server = serve(tmp_path / "bundles")
    before = server.ask("/v1/bundles/tiny/manifest.json")
    newer = tiny.copy_to(tmp_path / "newer", version=2)
    served.rename(tmp_path / "older")
    newer.rename(served)
    after = server.ask("/v1/bundles/tiny/manifest.json", headers={"If-None-Match": before.headers["etag"]})
    assert after.status == 200
    assert after.json()["version"] == 2
    assert after.headers["etag"] == f'"{hashlib.sha256(after.body).hexdigest()}"'
    signature = server.ask("/v1/bundles/tiny/manifest.sig").body
    assert signature == (served / "manifest.sig").read_bytes()
    assert server.ask("/v2/models/tiny").json()["versions"] == ["2"]


@pytest.mark.embedded
def test_a_blob_whose_bundle_vanished_is_404(serve, tiny, tmp_path, blob):
    served = tiny.copy_to(tmp_path / "bundles" / "tiny")
    server = serve(tmp_path / "bundles")
    assert server.ask(f"/v1/bundles/tiny/blobs/{blob[0]}").status == 200
    shutil.rmtree(served)
    assert server.ask(f"/v1/bundles/tiny/blobs/{blob[0]}").status == 404
    assert server.ask("/v1/bundles").json() == {"bundles": []}
