"""Whole deliveries over real HTTP from a server that fails on purpose.

Transfers of single blobs: test_blobs.py; kills and races: test_download_processes.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import RunsOn
from device_sdk.errors import (
    BlobError,
    ManifestError,
    PathweaveError,
    ProtocolError,
    RefusedError,
    RollbackError,
    RuntimeFailedError,
    SignatureError,
    StorageError,
    TransferError,
    UnsupportedFormatError,
    UsageError,
)
from device_sdk.signing import signatures
from device_sdk.supernet.plan import Edge
from device_sdk.transports.port import Deadlines


def largest(sizes):
    return max(sizes, key=lambda name: sizes[name])


def new_version(bundle, version, *, blob=None):
    """Change the version of a served bundle; with ``blob`` its file is replaced by another of the same length."""

    def change(manifest):
        manifest["version"] = version
        for block in manifest["blocks"]:
            for rendition in block["renditions"]:
                if blob is not None and rendition["blob"] == blob:
                    data = bytes(rendition["size_bytes"])
                    rendition["blob"] = hashlib.sha256(data).hexdigest()
                    (bundle.folder / "blobs" / rendition["blob"]).write_bytes(data)

    if blob is not None:
        bundle.edit(change)
        (bundle.folder / "blobs" / blob).unlink()
    else:
        bundle.edit(change)
    sign(bundle)


def sign(bundle):
    data = bundle.manifest_path.read_bytes()
    (bundle.folder / "manifest.sig").write_bytes(signatures.sign(data, private_key=bundle.private_key))


def test_a_bundle_arrives_whole_and_each_byte_is_sent_once(fetch, server, sizes, own_bundle):
    delivered = fetch()
    assert (delivered.source, delivered.name, delivered.version) == ("downloaded", "tiny", 1)
    assert delivered.digest == hashlib.sha256(own_bundle.manifest_path.read_bytes()).hexdigest()
    assert (delivered.blobs_fetched, delivered.bytes_fetched) == (len(sizes), sum(sizes.values()))
    assert (delivered.resumed, delivered.failure) == (0, None)
    assert server.blob_bytes() == sizes


def test_the_second_time_no_blob_is_asked_for(fetch, server):
    fetch()
    server.served.clear()
    again = fetch()
    assert (again.source, again.blobs_fetched, again.bytes_fetched) == ("unchanged", 0, 0)
    assert {one.path for one in server.served} == {"manifest.json", "manifest.sig"}


def test_a_bundle_that_was_never_said_to_work_counts_as_downloaded(fetch):
    fetch(good=False)
    assert fetch(good=False).source == "downloaded"


def test_a_new_version_costs_only_its_new_blobs(fetch, server, own_bundle, sizes):
    fetch()
    server.served.clear()
    new_version(own_bundle, 2, blob=largest(sizes))
    delivered = fetch()
    assert (delivered.source, delivered.version, delivered.blobs_fetched) == ("downloaded", 2, 1)
    assert sum(server.blob_bytes().values()) == sizes[largest(sizes)]


def test_a_device_fetches_only_what_it_can_run_and_the_rest_when_it_can(fetch, server, sizes, own_bundle):
    delivered = fetch(accepts=RunsOn("onnxruntime", left_out=frozenset({"int8"})))
    int8 = Bundle.open(own_bundle.folder).supernet.rendition(Edge("o1", "int8")).blob
    assert delivered.source == "downloaded"
    assert server.blob_bytes() == {name: size for name, size in sizes.items() if name != int8}
    with pytest.raises(BlobError, match="missing"):
        Bundle.open(delivered.folder, blobs=delivered.blobs)
    assert fetch().blobs_fetched == 1


def test_a_bundle_of_which_nothing_runs_here_is_refused_before_its_blobs_are_fetched(fetch, server):
    with pytest.raises(RuntimeFailedError, match="nothing that runs here"):
        fetch(accepts=RunsOn("executorch"))
    assert server.blob_bytes() == {}


# Signatures and versions


def test_with_a_key_an_unsigned_bundle_is_refused(fetch, own_bundle):
    (own_bundle.folder / "manifest.sig").unlink()
    with pytest.raises(SignatureError, match="not signed"):
        fetch()
    assert fetch(trust=None).source == "downloaded"


def test_somebody_elses_signature_is_refused_before_anything_is_parsed(fetch, own_bundle, server, tmp_path):
    own_bundle.manifest_path.write_bytes(b"not even JSON")
    with pytest.raises(SignatureError):
        fetch()
    with pytest.raises(ManifestError):
        fetch(trust=None)
    assert server.blob_bytes() == {}


@pytest.mark.parametrize("length", [0, 63, 65, 5000])
def test_a_signature_of_another_length_is_refused(fetch, own_bundle, length):
    (own_bundle.folder / "manifest.sig").write_bytes(bytes(length))
    for trust in (own_bundle.public_key, None):
        with pytest.raises(PathweaveError):
            fetch(trust=trust)


def test_a_newer_format_is_refused(fetch, own_bundle):
    own_bundle.edit(lambda manifest: manifest.update(format_version="2.0"), sign=True)
    with pytest.raises(UnsupportedFormatError):
        fetch()


def test_a_newer_version_replaces_an_older_one(fetch, own_bundle):
    fetch()
    new_version(own_bundle, 2)
    assert fetch().version == 2


def test_an_older_version_is_refused_and_the_newer_one_kept(fetch, own_bundle, server, store):
    new_version(own_bundle, 5)
    fetch()
    new_version(own_bundle, 4)
    kept = fetch()
    assert (kept.source, kept.version) == ("kept", 5)
    assert "version 4" in kept.failure
    server.served.clear()
    assert fetch(allow_rollback=True).version == 4
    assert store.last_good("tiny").version == 4


def test_an_older_version_from_another_address_is_refused(fetch, own_bundle, server):
    """Another mirror cannot bring back what this device has left behind."""
    new_version(own_bundle, 5)
    fetch()
    new_version(own_bundle, 4)
    other = server.url.replace("127.0.0.1", "localhost")
    with pytest.raises(RollbackError) as caught:
        fetch(url=other)
    assert caught.value.hint
    assert fetch(url=other, allow_rollback=True).version == 4


# The last good bundle


def test_offline_the_last_good_bundle_opens(fetch, server, caplog):
    fetch()
    server.close()
    with caplog.at_level(logging.WARNING):
        kept = fetch()
    assert (kept.source, kept.version, kept.bytes_fetched) == ("kept", 1, 0)
    assert "no connection" in kept.failure
    assert "\n" not in kept.failure
    assert "stays in use" in caplog.text


def test_offline_without_one_is_an_error(fetch, server):
    fetch(good=False)
    server.close()
    with pytest.raises(TransferError, match="no connection"):
        fetch()


def test_offline_another_address_is_an_error(fetch, server):
    fetch()
    url = server.url + "2"
    server.close()
    with pytest.raises(TransferError):
        fetch(url=url)


def test_a_bad_new_version_leaves_the_last_good_one_in_use(fetch, server, own_bundle, sizes, fault):
    fetch()
    new_version(own_bundle, 2, blob=largest(sizes))
    fresh = largest({p.name: p.stat().st_mtime_ns for p in (own_bundle.folder / "blobs").iterdir()})
    server.faults[f"blobs/{fresh}"] = [fault(flip_at=7)] * 2
    kept = fetch()
    assert (kept.source, kept.version) == ("kept", 1)
    assert "digest" in kept.failure
    assert fetch().version == 2


def test_the_trust_rule_holds_for_what_was_kept(fetch, own_bundle, server):
    (own_bundle.folder / "manifest.sig").unlink()
    fetch(trust=None)
    server.close()
    with pytest.raises(SignatureError):  # of Bundle.open
        fetch()


def test_what_is_no_address_is_a_usage_error_even_with_a_last_good_bundle(fetch):
    fetch()
    with pytest.raises(UsageError):
        fetch(url="v1/bundles/tiny")


# Replaced on the server meanwhile


def replace_once(server, when, how):
    """Call ``how`` once, before the first answer to a file whose name starts with ``when``."""
    done = []

    def before(path):
        with server.lock:
            if path.startswith(when) and not done:
                done.append(path)
                how()

    server.before = before


def test_replaced_between_manifest_and_signature(fetch, server, own_bundle):
    replace_once(server, "manifest.sig", lambda: new_version(own_bundle, 2))
    assert fetch().version == 2


def test_replaced_between_manifest_and_signature_every_time(fetch, server, own_bundle):
    versions = iter(range(2, 1000))

    def before(path):
        if path == "manifest.sig":
            new_version(own_bundle, next(versions))

    server.before = before
    with pytest.raises(SignatureError):
        fetch()
    assert len(server.of("manifest.json")) == 3


def test_replaced_while_its_blobs_are_fetched(fetch, server, own_bundle, sizes):
    """The new bundle arrives; no blob enters the store twice."""
    gone = largest(sizes)
    replace_once(server, f"blobs/{gone}", lambda: new_version(own_bundle, 2, blob=gone))
    delivered = fetch()
    assert (delivered.source, delivered.version) == ("downloaded", 2)
    assert delivered.blobs_fetched == len(sizes)
    assert gone not in (delivered.folder / "manifest.json").read_text()


def test_a_blob_that_is_simply_missing_is_named_after_a_few_rounds(fetch, server, own_bundle, sizes):
    (own_bundle.folder / "blobs" / largest(sizes)).unlink()
    with pytest.raises(RefusedError, match="404") as caught:
        fetch()
    assert largest(sizes)[:12] in str(caught.value)
    assert len(server.of("manifest.json")) == 3


# Bad input


def test_a_server_without_this_bundle_is_refused_with_its_words(fetch, server):
    with pytest.raises(RefusedError, match=r"404: no .*manifest\.json") as caught:
        fetch(url=server.root + "/v1/bundles/other")
    assert caught.value.hint


def test_a_redirect_is_not_followed(fetch, server, fault):
    server.faults["manifest.json"] = [fault(status=302)]
    with pytest.raises(RefusedError, match="302"):
        fetch()


@pytest.mark.parametrize("name", ["../evil", "..", "/etc/passwd", "a/b", "", "a\0b"])
def test_a_path_trick_in_the_name_of_a_bundle_is_refused(fetch, own_bundle, store, name):
    own_bundle.edit(lambda manifest: manifest.update(name=name), sign=True)
    for trust in (own_bundle.public_key, None):
        with pytest.raises(ManifestError):
            fetch(trust=trust)
    assert not store.folder.exists()


@pytest.mark.parametrize("name", ["../" * 20 + "etc/passwd", "/etc/passwd", "..", "a" * 63 + "/"])
def test_a_path_trick_in_the_name_of_a_blob_is_refused(fetch, own_bundle, server, store, name):
    def change(manifest):
        manifest["blocks"][0]["renditions"][0]["blob"] = name

    own_bundle.edit(change, sign=True)
    with pytest.raises(ManifestError):
        fetch()
    assert not store.folder.exists()
    assert server.blob_bytes() == {}


@pytest.mark.parametrize("size", [-1, 0, 10, 10**15])
def test_a_size_that_is_not_the_blobs_is_refused(fetch, own_bundle, store, size):
    def change(manifest):
        manifest["blocks"][0]["renditions"][0]["size_bytes"] = size

    own_bundle.edit(change, sign=True)
    with pytest.raises((TransferError, BlobError)):
        fetch(deadlines=Deadlines(0.5, 5.0))


def test_a_manifest_without_end_is_stopped(fetch, server, own_bundle):
    own_bundle.manifest_path.write_bytes(bytes(70_000_000))
    with pytest.raises(ProtocolError, match="more than the 64000000 bytes"):
        fetch()


def test_a_store_that_cannot_be_written_is_a_storage_error(fetch, store):
    store.folder.write_bytes(b"a file in the way")
    with pytest.raises(StorageError):
        fetch()


def test_progress_counts_the_bytes_that_are_missing(fetch, server, sizes):
    class Bars:
        def __init__(self):
            self.totals, self.done = [], 0.0

        @contextlib.contextmanager
        def task(self, name, total):
            self.totals.append(total)
            yield self

        def advance(self, amount=1.0):
            self.done += amount

        def note(self, text):
            pass

    bars = Bars()
    fetch(progress=bars)
    unsized = sum(sizes.values()) - bars.totals[0]
    assert 0 < unsized < 1000  # the shared weights
    assert bars.done == sum(sizes.values())
    shutil.rmtree(server.folder / "blobs")
    fetch(progress=bars)
    assert len(bars.totals) == 1  # nothing to fetch, no bar
