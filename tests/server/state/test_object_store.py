"""What is asked of an object store, of one in memory and of S3's protocol; and stores that are refused."""

from __future__ import annotations

import threading
import urllib.request

import pytest

from device_sdk.errors import StorageError, UsageError
from server.state.object_store import ObjectStore

obstore_stores = pytest.importorskip("obstore.store", reason="needs the extra: pip install 'pathweave[fleet]'")


@pytest.fixture(params=["memory", "s3"])
def store(request):
    if request.param == "memory":
        return ObjectStore(obstore_stores.MemoryStore(), "memory")
    return ObjectStore.at(request.getfixturevalue("s3").new())


def test_an_object_is_created_once(store):
    assert store.create("a/x", b"1")
    assert not store.create("a/x", b"2")
    assert store.read("a/x", max_bytes=1).data == b"1"


def test_of_many_that_create_an_object_at_once_one_does(store):
    created = []

    def create(number):
        if store.create("x", b"%d" % number):
            created.append(b"%d" % number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.read("x", max_bytes=9).data] == created


def test_an_object_is_replaced_only_as_it_was_read(store):
    assert store.swap("x", b"1", tag=None)
    assert not store.swap("x", b"2", tag=None)
    tag = store.read("x", max_bytes=1).tag
    assert store.swap("x", b"2", tag=tag)
    assert not store.swap("x", b"3", tag=tag)
    assert store.read("x", max_bytes=1).data == b"2"


def test_ranges_sizes_and_listings(store):
    store.create("a/x", b"0123456789")
    store.create("a/b/y", b"1")
    store.create("ab", b"1")
    assert store.read_range("a/x", 2, 5) == b"234"
    assert (store.size("a/x"), store.size("a/none")) == (10, None)
    assert {(entry.key, entry.size) for entry in store.list("a")} == {("a/x", 10), ("a/b/y", 1)}
    [listed] = [entry for entry in store.list("a") if entry.key == "a/x"]
    assert listed.tag == store.read("a/x", max_bytes=10).tag


def test_what_is_not_there(store):
    assert store.read("x", max_bytes=1) is None
    store.delete("x")
    with pytest.raises(StorageError):
        store.read_range("x", 0, 1)
    assert list(store.list("x")) == []


def test_deleting(store):
    store.create("x", b"1")
    store.delete("x")
    assert store.size("x") is None
    assert store.create("x", b"2")


def test_an_object_that_is_too_large_is_not_read(store):
    store.create("x", b"12")
    with pytest.raises(StorageError, match="more than 1 byte"):
        store.read("x", max_bytes=1)


def test_a_store_with_conditional_writes_passes_the_probe_and_is_left_as_it_was(store):
    store.probe()
    assert list(store.list("")) == []


def test_a_signed_url_needs_no_credentials(s3):
    store = ObjectStore.at(s3.new())
    store.create("blobs/x", b"123")
    with urllib.request.urlopen(store.signed_url("blobs/x", 60)) as reply:
        assert reply.read() == b"123"


def test_a_store_in_memory_signs_nothing():
    assert ObjectStore(obstore_stores.MemoryStore(), "memory").signed_url("x", 60) is None


def test_a_store_without_compare_and_swap_is_refused(tmp_path):
    with pytest.raises(StorageError, match="no conditional writes") as caught:
        ObjectStore(obstore_stores.LocalStore(tmp_path), "local").probe()
    assert "VersityGW" in caught.value.hint


class Careless(ObjectStore):
    """Accepts what must be refused, as some S3 servers do."""

    def __init__(self, ignores):
        super().__init__(obstore_stores.MemoryStore(), "careless")
        self._ignores, self._written = ignores, {}

    def create(self, key, data):
        if self._ignores == "create" and key in self._written:
            return True
        self._written[key] = data
        return super().create(key, data)

    def swap(self, key, data, *, tag):
        if self._ignores == "swap":
            return True
        return super().swap(key, data, tag=tag)


@pytest.mark.parametrize(("ignores", "reason"), [("create", "overwrites"), ("swap", "does not compare")])
def test_a_store_that_ignores_conditions_is_refused(ignores, reason):
    with pytest.raises(StorageError, match=reason):
        Careless(ignores).probe()


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "http://x/y",
        "file:///x",
        "s3://key:secret@bucket",
        "s3://bucket?secret=1",
        "memory:///",
        "gs://#secret",
    ],
)
def test_other_urls_are_refused_and_not_repeated(url):
    with pytest.raises(UsageError) as caught:
        ObjectStore.at(url)
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_a_store_that_is_away_is_a_storage_error(s3):
    store = ObjectStore.at("s3://no-such-bucket/x")
    with pytest.raises(StorageError) as caught:
        store.create("x", b"1")
    assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
