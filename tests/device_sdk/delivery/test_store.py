from __future__ import annotations

import contextlib
import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.store import BundleStore, collect
from device_sdk.errors import BundleError, UsageError

DATA = b"a blob"
NAME = hashlib.sha256(DATA).hexdigest()
URL = "http://host/v1/bundles/tiny"


def fill(store, data=DATA):
    name = hashlib.sha256(data).hexdigest()
    with store.writer(name, max_bytes=len(data)) as writer:
        writer.append(data)
        writer.commit()
    return store.blobs / name


@pytest.fixture
def saved(store, own_bundle):
    """The digest of the tiny bundle, whose manifest and blobs are in the store."""
    for path in (own_bundle.folder / "blobs").iterdir():
        fill(store, path.read_bytes())
    manifest = own_bundle.manifest_path.read_bytes()
    store.save_bundle("tiny", manifest, (own_bundle.folder / "manifest.sig").read_bytes())
    return hashlib.sha256(manifest).hexdigest()


def test_a_store_is_empty_until_it_is_written_to(store):
    assert not store.has_blob(NAME, None)
    assert store.last_good("tiny") is None
    assert store.last_good_at(URL) is None
    assert collect(store) == 0
    assert not store.folder.exists()


def test_a_blob_counts_only_with_its_size(store):
    path = fill(store)
    assert store.has_blob(NAME, len(DATA))
    assert store.has_blob(NAME, None)
    path.write_bytes(DATA[:-1])
    assert not store.has_blob(NAME, len(DATA))


def test_what_was_saved_opens_as_a_bundle(store, saved, own_bundle):
    store.remember_good(URL, "tiny", saved)
    good = store.last_good("tiny")
    assert (good.name, good.version, good.digest) == ("tiny", 1, saved)
    bundle = Bundle.open(good.folder, trust=own_bundle.public_key, blobs=store.blobs)
    bundle.verify()
    assert bundle.digest == saved


def test_saving_alone_does_not_make_it_the_last_good_one(store, saved):
    assert store.last_good("tiny") is None


def test_a_bundle_that_is_not_there_cannot_become_the_last_good_one(store, saved):
    with pytest.raises(BundleError):
        store.remember_good(URL, "tiny", "0" * 64)
    with pytest.raises(BundleError):
        store.remember_good(URL, "other", saved)


def test_an_address_leads_to_the_last_good_bundle_of_its_name(store, saved):
    assert store.last_good_at(URL) is None
    store.remember_good(URL, "tiny", saved)
    assert store.last_good_at(URL + "/").digest == saved
    assert store.last_good_at(URL + "2") is None


def test_an_altered_manifest_is_no_last_good_bundle(store, saved, caplog):
    store.remember_good(URL, "tiny", saved)
    path = store.last_good("tiny").folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 2'))
    assert store.last_good("tiny") is None
    assert "does not match its digest" in caplog.text


@given(st.text(max_size=80))
def test_no_name_leads_out_of_the_store(tmp_path_factory, name):
    store = BundleStore(tmp_path_factory.mktemp("outer") / "store")
    for call in (
        lambda: store.save_bundle(name, b"{}", None),
        lambda: store.remember_good(URL, name, "0" * 64),
        lambda: store.writer(name, max_bytes=1).__enter__(),
    ):
        with contextlib.suppress(BundleError):
            call()
    assert os.listdir(store.folder.parent) in ([], ["store"])
    assert set(os.listdir(store.folder) if store.folder.exists() else []) <= {"bundles", "lock"}


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc", "a\0b", "", "a\n", "-a", "A" * 64, "0" * 63, f"{NAME}/"])
def test_names_with_path_tricks_are_refused(store, name):
    with pytest.raises(BundleError):
        store.has_blob(name, None)
    with pytest.raises(BundleError):
        store.remember_good(URL, "tiny", name)
    if name != "A" * 64 and name != "0" * 63:
        with pytest.raises(BundleError):
            store.last_good(name)


def test_what_is_no_address_is_refused(store, saved):
    with pytest.raises(UsageError):
        store.remember_good("tiny", "tiny", saved)


def test_altered_blobs_are_found_and_removed(store):
    good, bad = fill(store), fill(store, b"another blob")
    bad.write_bytes(b"anothEr blob")
    assert store.remove_altered([good.name, bad.name, "0" * 64]) == (bad.name,)
    assert (good.exists(), bad.exists()) == (True, False)


class WithoutLocks(BundleStore):
    """A store on a system without locks; ``meanwhile`` runs after its check, before it writes."""

    meanwhile = staticmethod(lambda: None)

    def _writing(self):
        return contextlib.nullcontext()

    writing = _writing

    def refuse(self, *arguments, **settings):
        super().refuse(*arguments, **settings)
        self.meanwhile()


def test_without_locks_a_late_installer_of_an_older_version_does_not_lower_the_mark(store, saved, own_bundle):
    own_bundle.edit(lambda manifest: manifest.update(version=2))
    newer = store.save_bundle("tiny", own_bundle.manifest_path.read_bytes(), None).name
    late = WithoutLocks(store.folder)
    late.meanwhile = lambda: WithoutLocks(store.folder).remember_good(URL, "tiny", newer)
    late.remember_good(URL, "tiny", saved)
    assert store.highest("tiny").version == 2
    assert store.last_good_at(URL).version == 2


def test_a_rollback_that_is_allowed_lowers_the_mark(store, saved, own_bundle):
    own_bundle.edit(lambda manifest: manifest.update(version=2))
    newer = store.save_bundle("tiny", own_bundle.manifest_path.read_bytes(), None).name
    store.remember_good(URL, "tiny", newer)
    store.remember_good(URL, "tiny", saved, allow_rollback=True)
    assert store.highest("tiny").version == 1
    assert store.last_good_at(URL).version == 1
