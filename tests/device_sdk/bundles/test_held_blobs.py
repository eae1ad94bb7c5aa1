from __future__ import annotations

import gc
import hashlib
import os
from pathlib import Path

import pytest

from device_sdk.bundles.held_part import HeldBlobs
from device_sdk.errors import BlobError


@pytest.fixture
def blob(tmp_path):
    data = bytes(range(256)) * 10_000  # more than is read at once
    path = tmp_path / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    return path


def open_files(folder: Path) -> int:
    """How many files in ``folder`` this process has open."""
    found = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum(link.is_symlink() and link.readlink().parent == folder for link in found)


def test_a_blob_is_read_whenever_it_is_looked_at(blob):
    held = HeldBlobs(blob.parent, [blob.name, blob.name])
    assert held.size(blob.name) == blob.stat().st_size
    fragments = held.fragments([blob.name])
    assert len(fragments) == 1
    assert [fragments[0], *fragments[:1], *fragments] == [blob.read_bytes()] * 3


def test_a_removed_or_replaced_file_stays_readable(blob):
    held, data = HeldBlobs(blob.parent, [blob.name]), blob.read_bytes()
    blob.unlink()
    assert held.read(blob.name) == data
    blob.write_bytes(b"something else")
    assert held.read(blob.name) == data


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 2_560_000], ids=["emptied", "truncated", "overwritten"])
def test_a_file_damaged_in_place_is_never_used(blob, damage):
    held = HeldBlobs(blob.parent, [blob.name])
    with blob.open("r+b") as file:
        file.truncate(len(damage))
        file.write(damage)
    with pytest.raises(BlobError, match="does not match its digest") as caught:
        held.read(blob.name)
    assert caught.value.hint


def test_a_file_that_grows_is_not_read_into_memory(blob):
    held = HeldBlobs(blob.parent, [blob.name])
    os.truncate(blob, 1 << 40)
    with pytest.raises(BlobError, match="does not match its digest"):
        held.read(blob.name)


def test_what_is_missing_damaged_or_no_file_is_found_when_it_is_opened(blob, tmp_path):
    (tmp_path / ("0" * 64)).write_bytes(b"other bytes")
    (tmp_path / ("1" * 64)).mkdir()
    for name, said in (("0", "does not match"), ("1", "cannot be read"), ("2", "cannot be read")):
        with pytest.raises(BlobError, match=said):
            HeldBlobs(tmp_path, [blob.name, name * 64])


def test_closed_twice_it_refuses_and_leaves_no_file_open(blob):
    held = HeldBlobs(blob.parent, [blob.name])
    held.close()
    held.close()
    with pytest.raises(BlobError, match="not held open"):
        held.read(blob.name)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files under /proc")
def test_files_are_closed_with_the_last_reference(blob):
    held = HeldBlobs(blob.parent, [blob.name])
    assert open_files(blob.parent) == 1
    del held
    gc.collect()
    assert open_files(blob.parent) == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files under /proc")
def test_no_file_stays_open_where_one_of_them_is_refused(blob):
    with pytest.raises(BlobError):
        HeldBlobs(blob.parent, [blob.name, "2" * 64])
    gc.collect()
    assert open_files(blob.parent) == 0
