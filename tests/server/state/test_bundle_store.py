"""What is asked of every store of bundles: a folder, objects in memory, objects in S3."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BlobError, StorageError
from server.errors import NotFoundError, PublishError
from server.state.bundle_store import open_bundles
from server.state.folder_bundles import FolderBundles
from server.state.object_bundles import ObjectBundles
from server.state.object_store import ObjectStore
from tests.contract.signed_files import key_list, release

obstore_stores = pytest.importorskip("obstore.store", reason="needs the extra: pip install 'pathweave[fleet]'")


@pytest.fixture
def opened():
    """All stores that a test opened; they are closed when it ends."""
    stores = []
    yield stores
    for store in stores:
        store.close()


@pytest.fixture(params=["memory", "s3"])
def objects(request):
    """An object store, empty."""
    if request.param == "memory":
        return ObjectStore(obstore_stores.MemoryStore(), "memory")
    return ObjectStore.at(request.getfixturevalue("s3").new())


@pytest.fixture
def new_replica(objects, tmp_path, opened):
    """Opens the same object store again, with a cache of its own."""

    def replica(**settings):
        cache = tmp_path / f"cache-{len(opened)}"
        opened.append(ObjectBundles(objects, cache, **{"cache_bytes": 10**9, **settings}))
        return opened[-1]

    return replica


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request, tmp_path, opened):
    """A store, empty."""
    if request.param == "folder":
        (tmp_path / "served").mkdir()
        return FolderBundles(tmp_path / "served")
    objects = ObjectStore(obstore_stores.MemoryStore(), "memory")
    if request.param == "s3":
        objects = ObjectStore.at(request.getfixturevalue("s3").new())
    opened.append(ObjectBundles(objects, tmp_path / "cache", cache_bytes=10**9))
    return opened[-1]


@pytest.fixture
def made(tiny, tmp_path):
    """Copies of the tiny bundle with other values in the manifest."""
    numbers = iter(range(100))
    return lambda **changes: tiny.copy_to(tmp_path / f"made-{next(numbers)}", **changes)


def names(store):
    return [(served.name, served.version) for served in store.listing().served]


def test_a_published_bundle_is_served(store, made, tiny):
    expected = (tiny.folder / "manifest.json").read_bytes()
    sizes = Bundle.open(tiny.folder).blob_sizes()
    shutil.copytree(tiny.folder, out := made().with_name("out"))
    store.publish(out, name="tiny", version=1)
    served = store.find("tiny")
    assert (served.manifest, served.signature) == (expected, (tiny.folder / "manifest.sig").read_bytes())
    assert served.blob_sizes == sizes
    for blob in sizes:
        assert hashlib.sha256(store.find_blob("tiny", blob).read_bytes()).hexdigest() == blob
    served.bundle.verify()
    store.check()


def test_a_bundle_that_is_served_runs(store, made):
    store.publish(made(), name="tiny", version=1)
    bundle = store.find("tiny").bundle
    assert bundle.stretch(bundle.supernet.original.edges).fragments


def test_the_highest_version_is_served_and_blobs_of_all(store, made, tiny):
    for version in (2, 10, 9):
        store.publish(made(version=version), name="tiny", version=version)
    store.publish(made(name="other"), name="other", version=1)
    assert names(store) == [("other", 1), ("tiny", 10)]
    assert [one.version for one in store.listing().bundles["tiny"]] == [10, 9, 2]
    assert store.next_version("tiny") == 11
    assert store.next_version("new") == 1


def test_a_version_that_another_bundle_has_is_refused(store, made):
    store.publish(made(version=3), name="tiny", version=3)
    with pytest.raises(PublishError, match="exists already"):
        store.publish(made(version=3, description="another"), name="tiny", version=3)
    assert "another" not in json.loads(store.find("tiny").manifest).get("description", "")


def test_what_is_unknown_is_not_found(store, made):
    store.publish(made(), name="tiny", version=1)
    for ask in (
        lambda: store.find("none"),
        lambda: store.find_blob("none", "0" * 64),
        lambda: store.find_blob("tiny", "0" * 64),
        lambda: store.find_key_list("tiny", 1),
        lambda: store.remove("tiny", 2),
        lambda: store.remove("none", 1),
    ):
        with pytest.raises(NotFoundError):
            ask()


def test_a_version_that_is_removed_is_no_longer_served(store, made):
    for version in (1, 2):
        store.publish(made(version=version), name="tiny", version=version)
    store.remove("tiny", 2)
    assert names(store) == [("tiny", 1)]
    store.remove("tiny", 1)
    assert names(store) == []
    store.publish(made(version=2), name="tiny", version=2)
    assert names(store) == [("tiny", 2)]


def test_releases_and_key_lists_of_a_bundle_come_with_it(store, made):
    out = made()
    (out / "release.json").write_bytes(release(b"one"))
    (out / "keys").mkdir()
    (out / "keys" / "1.json").write_bytes(key_list())
    store.publish(out, name="tiny", version=1)
    assert store.find("tiny").release == release(b"one")
    assert store.find_key_list("tiny", 1) == key_list()


def test_publishing_again_renews_the_release_and_sends_nothing_twice(new_replica, made, objects):
    store, out = new_replica(), made()
    store.publish(out, name="tiny", version=1)
    before = {entry.key for entry in objects.list("")}
    (out / "release.json").write_bytes(release(b"one"))
    store.publish(out, name="tiny", version=1)
    assert {entry.key for entry in objects.list("")} - before == {"bundles/tiny/1.release"}
    assert store.find("tiny").release == release(b"one")


def test_replicas_that_publish_at_once_get_a_version_each(new_replica, made):
    replicas, refused = [new_replica() for _ in range(3)], []
    outs = [
        (number, version, made(version=version, description=str(number))) for number in range(3) for version in (1, 2)
    ]

    def publish(number, version, out):
        try:
            replicas[number].publish(out, name="tiny", version=version)
        except PublishError:
            refused.append(version)

    threads = [threading.Thread(target=publish, args=one) for one in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(refused) == [1, 1, 2, 2]
    seen = set()
    for replica in replicas:
        replica.refresh()
        seen.add(tuple(one.manifest for one in replica.listing().bundles["tiny"]))
    [(latest, older)] = seen
    assert (json.loads(latest)["version"], json.loads(older)["version"]) == (2, 1)


class Stopped(Exception):
    """A publisher ends."""


class Stopping(ObjectStore):
    """Ends before the write of this number."""

    def __init__(self, inner, left):
        super().__init__(inner._store, "stopping")
        self._left = left

    def _count(self):
        if self._left == 0:
            raise Stopped
        self._left -= 1

    def create(self, key, data):
        self._count()
        return super().create(key, data)

    def swap(self, key, data, *, tag):
        self._count()
        return super().swap(key, data, tag=tag)


def test_a_publisher_that_ends_anywhere_leaves_the_old_version_and_may_go_on(made, tmp_path, opened):
    objects = ObjectStore(obstore_stores.MemoryStore(), "memory")
    reader = ObjectBundles(objects, tmp_path / "reader", cache_bytes=10**9)
    opened.append(reader)
    reader.publish(made(), name="tiny", version=1)
    out, ends = made(version=2), 0
    while True:
        writer = ObjectBundles(Stopping(objects, ends), tmp_path / "writer", cache_bytes=10**9)
        opened.append(writer)
        try:
            writer.publish(out, name="tiny", version=2)
            break
        except Stopped:
            ends += 1
        reader.refresh()
        assert names(reader) == [("tiny", 1)]
    assert ends >= 3
    reader.refresh()
    assert names(reader) == [("tiny", 2)]
    assert reader.verify("tiny", 2) > 0


def test_another_replica_sees_it_and_what_is_unchanged_is_read_once(new_replica, made):
    writer, reader = new_replica(), new_replica()
    writer.publish(made(), name="tiny", version=1)
    reader.refresh()
    first = reader.find("tiny")
    reader.refresh()
    assert reader.find("tiny") is first
    writer.publish(made(version=2), name="tiny", version=2)
    reader.refresh()
    assert reader.listing().bundles["tiny"][1] is first
    assert not list((reader.key_lists() / "blobs").iterdir())  # nobody asked for one


def test_a_blob_is_fetched_once_and_the_oldest_go(new_replica, made, objects):
    writer = new_replica()
    writer.publish(made(), name="tiny", version=1)
    reader = new_replica(cache_bytes=1)
    for blob in reader.find("tiny").blob_sizes:
        path = reader.find_blob("tiny", blob)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == blob
        assert [one.name for one in path.parent.iterdir()] == [blob]
    again = reader.find_blob("tiny", blob)
    objects.delete(f"blobs/{blob}")
    assert reader.find_blob("tiny", blob) == again


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_damaged_blob_is_never_served(new_replica, made, objects, damage):
    writer = new_replica()
    writer.publish(made(), name="tiny", version=1)
    blob, size = next(iter(writer.find("tiny").blob_sizes.items()))
    objects.delete(f"blobs/{blob}")
    if damage == "altered":
        objects.create(f"blobs/{blob}", bytes(size))
    with pytest.raises((BlobError, StorageError)):
        new_replica().find_blob("tiny", blob)
    with pytest.raises(StorageError):
        writer.verify("tiny", 1)


@pytest.mark.parametrize("kind", ["manifest", "record", "pointer", "missing manifest"])
def test_what_is_damaged_in_the_store_is_told_and_leaves_the_others_alone(new_replica, made, objects, kind):
    writer = new_replica()
    for name in ("good", "bad"):
        writer.publish(made(name=name), name=name, version=1)
    digest = writer.find("bad").bundle.digest
    key = {"record": "bundles/bad/1.json", "pointer": "latest/bad.json"}.get(kind, f"blobs/{digest}")
    objects.delete(key)
    if "missing" not in kind:
        objects.create(key, b"{}" + bytes(100))
    reader = new_replica()
    assert names(reader) == [("good", 1)]
    [broken] = reader.listing().broken
    assert broken.folder.startswith("bad")
    assert broken.reason


def test_while_the_store_is_away_what_is_known_is_served(made, tmp_path, opened):
    class Leaving(ObjectStore):
        away = False

        def list(self, prefix):
            if self.away:
                raise StorageError("away")
            return super().list(prefix)

        def read(self, key, *, max_bytes):
            if self.away:
                raise StorageError("away")
            return super().read(key, max_bytes=max_bytes)

    objects = Leaving(obstore_stores.MemoryStore(), "memory")
    opened.append(store := ObjectBundles(objects, tmp_path / "cache", cache_bytes=10**9))
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "1.json").write_bytes(key_list())
    assert store.add_key_lists(tmp_path) == ["keys/1.json"]
    store.publish(made(), name="tiny", version=1)
    objects.away = True
    with pytest.raises(StorageError):
        store.refresh()
    assert names(store) == [("tiny", 1)]
    assert store.find_key_list("tiny", 1) == key_list()


def test_a_folder_and_a_url_are_told_apart(tmp_path, s3, opened):
    assert isinstance(open_bundles(tmp_path, cache=tmp_path / "c", cache_bytes=1), FolderBundles)
    opened.append(open_bundles(s3.new(), cache=tmp_path / "c", cache_bytes=1))
    assert isinstance(opened[-1], ObjectBundles)
