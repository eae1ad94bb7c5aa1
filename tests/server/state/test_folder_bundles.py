from __future__ import annotations

import shutil

import pytest

from server.errors import NotFoundError
from server.state.folder_bundles import FolderBundles


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bundles").mkdir()
    return tmp_path / "bundles"


def names(catalogue):
    return [(served.name, served.version) for served in catalogue.listing().served]


def test_a_folder_of_bundles(tiny, folder):
    tiny.copy_to(folder / "one", name="b")
    tiny.copy_to(folder / "two", name="a", version=7)
    (folder / "notes").mkdir()
    (folder / "file").write_text("no bundle")
    assert names(FolderBundles(folder)) == [("a", 7), ("b", 1)]


def test_a_folder_that_is_a_bundle(tiny):
    assert names(FolderBundles(tiny.folder)) == [("tiny", 1)]


def test_hidden_folders_do_not_count(tiny, folder):
    tiny.copy_to(folder / ".tiny.writing")
    assert names(FolderBundles(folder)) == []


def test_the_highest_version_is_served_and_blobs_of_all(tiny, folder):
    tiny.copy_to(folder / "tiny-9", version=9)
    older = tiny.copy_to(folder / "tiny-10", version=10)
    catalogue = FolderBundles(folder)
    assert catalogue.find("tiny").version == 10
    assert len(catalogue.listing().bundles["tiny"]) == 2
    some = next(iter(catalogue.find("tiny").blob_sizes))
    assert catalogue.find_blob("tiny", some) == older / "blobs" / some
    with pytest.raises(NotFoundError):
        catalogue.find_blob("tiny", "f" * 64)


def test_a_download_of_the_older_version_goes_on(tiny, folder):
    served = tiny.copy_to(folder / "tiny-1")
    catalogue = FolderBundles(folder)
    blobs = dict(catalogue.find("tiny").blob_sizes)
    newer = tiny.copy_to(folder / "tiny-2", version=2)
    removed = newer / "blobs" / next(iter(blobs))
    manifest = (newer / "manifest.json").read_text().replace(removed.name, "a" * 64)
    (newer / "manifest.json").write_text(manifest)
    removed.rename(newer / "blobs" / ("a" * 64))
    assert catalogue.find("tiny").version == 2
    assert removed.name not in catalogue.find("tiny").blob_sizes
    assert catalogue.find_blob("tiny", removed.name) == served / "blobs" / removed.name


@pytest.mark.parametrize("damage", ["no JSON", "a blob is missing", "a short signature", "another format"])
def test_a_broken_bundle_is_told_and_leaves_the_others_alone(tiny, folder, caplog, damage):
    tiny.copy_to(folder / "good", name="good")
    broken = tiny.copy_to(folder / "broken", **({"format_version": "9.0"} if damage == "another format" else {}))
    if damage == "no JSON":
        (broken / "manifest.json").write_text("{")
    if damage == "a blob is missing":
        next((broken / "blobs").iterdir()).unlink()
    if damage == "a short signature":
        (broken / "manifest.sig").write_bytes(b"1234")
    catalogue = FolderBundles(folder)
    assert names(catalogue) == [("good", 1)]
    [told] = catalogue.listing().broken
    assert told.folder == "broken"
    assert told.reason
    assert str(folder) not in told.reason
    warnings = [record for record in caplog.records if "broken is not served" in record.message]
    assert len(warnings) == 1  # and not at every look


def test_a_mended_bundle_is_served(tiny, folder):
    broken = tiny.copy_to(folder / "tiny")
    blob = next((broken / "blobs").iterdir())
    data = blob.read_bytes()
    blob.unlink()
    catalogue = FolderBundles(folder)
    assert names(catalogue) == []
    blob.write_bytes(data)
    assert names(catalogue) == [("tiny", 1)]


def test_an_unchanged_bundle_is_read_once(tiny, folder):
    tiny.copy_to(folder / "tiny")
    catalogue = FolderBundles(folder)
    assert catalogue.find("tiny") is catalogue.find("tiny")


def test_a_signature_that_comes_later_counts(tiny, folder):
    served = tiny.copy_to(folder / "tiny")
    (served / "manifest.sig").rename(folder / "kept")
    catalogue = FolderBundles(folder)
    assert not catalogue.find("tiny").bundle.has_signature
    (folder / "kept").rename(served / "manifest.sig")
    assert catalogue.find("tiny").bundle.has_signature


def test_a_folder_that_vanished_is_empty(tiny, folder):
    tiny.copy_to(folder / "tiny")
    catalogue = FolderBundles(folder)
    assert names(catalogue) == [("tiny", 1)]
    shutil.rmtree(folder)
    assert names(catalogue) == []
