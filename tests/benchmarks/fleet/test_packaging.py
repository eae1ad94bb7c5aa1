"""The counters of packaging jobs beside a fleet count what they say."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra: pip install 'pathweave[server]'")
pytest.importorskip("obstore", reason="needs the extra: pip install 'pathweave[fleet]'")

from obstore.store import MemoryStore

from benchmarks.fleet.packaging import Counted, Fate, count_fates, torn_in, versions_in
from device_sdk.signing import signatures
from server.state.object_bundles import ObjectBundles
from server.state.object_store import ObjectStore
from tests.device_sdk.tiny_bundle import write_tiny_bundle

NAME = "tiny"


def test_a_job_is_lost_unless_its_version_is_there_or_it_failed_for_a_reason():
    fates = {
        "published": Fate("done", published=1),
        "its version is not there": Fate("done", published=9),
        "never published": Fate("done"),
        "failed for a reason": Fate("failed", error="no memory"),
        "failed without one": Fate("failed"),
        "waits": Fate("queued"),
        "runs": Fate("running"),
        "no server knows it": Fate(None),
    }
    assert count_fates(fates.values(), [1], 0) == Counted(lost=6, repeated=0, torn=0)


def test_two_jobs_with_one_version_are_a_lost_one():
    assert count_fates([Fate("done", published=1)] * 2, [1], 0).lost == 1


def test_a_version_that_no_job_names_is_a_repeated_job():
    assert count_fates([Fate("done", published=1)], [1, 2], 0).repeated == 1


@pytest.fixture
def store(tmp_path):
    """A store with one bundle."""
    folder, key = tmp_path / NAME, tmp_path / "key"
    key.write_bytes(signatures.new_key_pair()[0])
    write_tiny_bundle(folder, key)
    found = ObjectStore(MemoryStore(), "memory")
    bundles = ObjectBundles(found, tmp_path / "cache", cache_bytes=0)
    bundles.publish(folder, name=NAME, version=1)
    bundles.close()
    return found


def test_a_store_that_is_whole_has_nothing_torn(store):
    assert (versions_in(store, NAME), torn_in(store)) == ([1], 0)


def test_an_altered_blob_is_torn(store):
    key = next(entry.key for entry in store.list("blobs"))
    data = store.read(key, max_bytes=10**8).data
    store.delete(key)
    store.create(key, data[:-1])
    assert torn_in(store) == 1


def test_a_version_without_one_of_its_blobs_is_torn(store):
    store.delete(next(entry.key for entry in store.list("blobs")))
    assert torn_in(store) == 1


def test_a_version_with_a_damaged_record_is_torn(store):
    store.delete(f"bundles/{NAME}/1.json")
    store.create(f"bundles/{NAME}/1.json", b"{")
    assert torn_in(store) == 1
