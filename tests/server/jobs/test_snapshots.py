"""Copies of a job's files in a shared folder and in an object store."""

from __future__ import annotations

import hashlib
import os

import pytest

from device_sdk.errors import StorageError
from server.jobs.job_objects import FolderJobObjects, StoredJobObjects
from server.jobs.snapshots import (
    StoredFile,
    any_file,
    decode_files,
    encode_files,
    is_saved_work,
    restore,
    save,
    states_of,
)
from server.state.object_store import ObjectError, ObjectStore


@pytest.fixture(params=["folder", "s3"])
def objects(request, tmp_path):
    if request.param == "folder":
        return FolderJobObjects(tmp_path / "shared")
    return StoredJobObjects(ObjectStore.at(request.getfixturevalue("s3").new()))


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "job" / "out.work"
    (folder / "parts").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "state.pt").write_bytes(b"one")
    (folder / "parts" / "x.pt").write_bytes(b"x" * 100_000)
    return folder


@pytest.fixture
def saved(objects, tmp_path):
    def one(folder, *, stored=(), states=None, wanted=is_saved_work):
        states = states_of(folder, wanted) if states is None else states
        return save(
            folder, states, job_id="1", objects=objects, wanted=wanted, scratch=tmp_path / "scratch", stored=stored
        )

    return one


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_arrives_as_it_was(saved, objects, work, tmp_path):
    files = decode_files(encode_files(saved(work)))
    restore(files, tmp_path / "other", job_id="1", objects=objects)
    assert contents(tmp_path / "other") == contents(work)
    assert objects.job_ids() == {"1"}
    assert objects.digests("1") == {one.digest for one in files}
    assert list((tmp_path / "scratch").iterdir()) == []


def test_caches_and_half_written_files_stay(saved, work):
    (work / "features.1").mkdir()
    for name in ("answers.0-of-1.f32", ".state.pt.tmp", "features.1/a"):
        (work / name).write_bytes(b"x")
    assert {one.path for one in saved(work)} == {"run.json", "state.pt", "parts/x.pt"}


def test_a_folder_that_changes_meanwhile_is_not_copied(saved, objects, work):
    states = states_of(work, is_saved_work)
    (work / "new").write_bytes(b"two")
    os.replace(work / "new", work / "state.pt")
    assert saved(work, states=states) is None
    assert objects.digests("1") == set()


def test_links_are_not_followed(saved, work, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (work / "state.pt").unlink()
    (work / "state.pt").symlink_to(tmp_path / "secret")
    assert saved(work) is None
    (work / "state.pt").unlink()
    (work / "state.pt").hardlink_to(tmp_path / "secret")
    assert saved(work) is None


def test_only_what_is_new_is_sent(saved, objects, work):
    first = saved(work)
    objects.delete("1", objects.digests("1"))
    (work / "state.pt").write_bytes(b"two")
    second = saved(work, stored={one.digest for one in first})
    assert objects.digests("1") == {hashlib.sha256(b"two").hexdigest()}
    assert len(second) == 3


def test_what_is_missing_or_altered_is_refused(saved, objects, work, tmp_path):
    files = saved(work)
    wrong = StoredFile("state.pt", hashlib.sha256(b"x").hexdigest(), 1)
    with pytest.raises(ObjectError, match="missing"):
        restore([wrong], tmp_path / "other", job_id="1", objects=objects)
    (tmp_path / "bad").write_bytes(b"bad")
    objects.delete("1", [files[0].digest])
    objects.put("1", files[0].digest, tmp_path / "bad")
    with pytest.raises(ObjectError, match="digest"):
        restore(files, tmp_path / "other", job_id="1", objects=objects)


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", ""])
def test_paths_outside_the_folder_are_refused(objects, tmp_path, path):
    with pytest.raises(ObjectError, match="path"):
        restore([StoredFile(path, "0" * 64, 1)], tmp_path / "other", job_id="1", objects=objects)


def test_a_job_without_files_has_none(objects):
    assert objects.digests("9") == set()
    objects.delete("9", ["0" * 64])
    assert objects.job_ids() == set()


def test_a_full_disk_is_a_storage_error(saved, work, tmp_path):
    (tmp_path / "scratch").write_text("no folder")
    with pytest.raises(StorageError):
        saved(work, wanted=any_file)
