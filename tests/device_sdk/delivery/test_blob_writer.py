from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.delivery.blob_writer import BlobWriter, orphans
from device_sdk.errors import BlobError, StorageError

ROOT = Path(__file__).parents[3]
DATA = b"the bytes of a blob"
NAME = hashlib.sha256(DATA).hexdigest()


def writer(folder: Path, *, name: str = NAME, max_bytes: int = len(DATA)) -> BlobWriter:
    return BlobWriter(folder / "partial", name, folder / "blobs" / name, max_bytes=max_bytes)


def partials(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "partial"))


def dead_process() -> int:
    """The id of a process that has just ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait(timeout=60)
    return process.pid


def leave(folder: Path, process: int, data: bytes, unique: str = "ab12") -> Path:
    (folder / "partial").mkdir(exist_ok=True)
    path = folder / "partial" / f"{NAME}.{process}.{unique}.part"
    path.write_bytes(data)
    return path


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_pieces_become_one_blob(tmp_path_factory, pieces):
    folder = tmp_path_factory.mktemp("store")
    name = hashlib.sha256(b"".join(pieces)).hexdigest()
    with writer(folder, name=name, max_bytes=500) as one:
        for piece in pieces:
            one.append(piece)
        assert one.size == len(b"".join(pieces))
        one.commit()
    assert (folder / "blobs" / name).read_bytes() == b"".join(pieces)
    assert partials(folder) == []


def test_a_wrong_digest_is_refused_and_forgotten(tmp_path):
    with writer(tmp_path) as one:
        one.append(DATA[:-1] + b"?")
        with pytest.raises(BlobError, match="digest"):
            one.commit()
        assert one.size == 0
        one.append(DATA)
        one.commit()
    assert (tmp_path / "blobs" / NAME).read_bytes() == DATA


def test_more_bytes_than_allowed_are_refused(tmp_path):
    with writer(tmp_path) as one:
        one.append(DATA[:-1])
        with pytest.raises(BlobError, match="larger"):
            one.append(b"ab")


def test_what_is_not_moved_does_not_count(tmp_path):
    with writer(tmp_path) as one:
        one.append(DATA)
    assert not (tmp_path / "blobs").exists()


@pytest.mark.parametrize("given_up", [True, False])
def test_the_next_writer_goes_on_from_the_longest_orphan(tmp_path, given_up):
    if given_up:
        with writer(tmp_path) as first:
            first.append(DATA[:8])
    else:
        leave(tmp_path, dead_process(), DATA[:8])
    leave(tmp_path, dead_process(), DATA[:5], unique="cd34")
    with writer(tmp_path) as second:
        assert second.size == 8
        assert len(partials(tmp_path)) == 1  # its own; the orphans are gone
        second.append(DATA[8:])
        second.commit()
    assert (tmp_path / "blobs" / NAME).read_bytes() == DATA


def test_an_orphan_is_copied_and_never_written_to(tmp_path):
    orphan = leave(tmp_path, dead_process(), DATA[:8])
    with orphan.open("r+b") as still_open, writer(tmp_path) as one:
        still_open.write(b"XXXXXXXX")  # by a process that only seemed dead
        still_open.flush()
        one.append(DATA[8:])
        one.commit()
    assert (tmp_path / "blobs" / NAME).read_bytes() == DATA


def test_the_file_of_a_living_writer_is_left_alone(tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        path = leave(tmp_path, sleeper.pid, DATA[:8])
        with writer(tmp_path) as first, writer(tmp_path) as second:
            assert (first.size, second.size) == (0, 0)
            first.append(DATA)
            second.append(DATA)
            first.commit()
            second.commit()
        assert path.read_bytes() == DATA[:8]
    finally:
        sleeper.communicate(b"\n", timeout=60)
    assert list(orphans(tmp_path / "partial")) == [path]


def test_an_earlier_process_with_our_id_is_dead(tmp_path):
    leave(tmp_path, os.getpid(), DATA[:8])
    with writer(tmp_path) as one:
        assert one.size == 8


def test_an_orphan_that_is_too_long_is_no_beginning(tmp_path):
    path = leave(tmp_path, 0, DATA + b"more")
    with writer(tmp_path) as one:
        assert one.size == 0
    assert not path.exists()


def test_altered_bytes_of_an_orphan_never_enter(tmp_path):
    leave(tmp_path, 0, b"XXXXXXXX")
    with writer(tmp_path) as one:
        one.append(DATA[8:])
        with pytest.raises(BlobError):
            one.commit()
    assert not (tmp_path / "blobs").exists()


@pytest.mark.parametrize(
    "stranger", ["notes.txt", f"{NAME}.x.part", f"{NAME}.1.zz.part", "..part", f"{'A' * 64}.0.ab.part"]
)
def test_other_files_are_no_orphans(tmp_path, stranger):
    (tmp_path / stranger).write_bytes(b"x")
    assert list(orphans(tmp_path)) == []


def test_a_full_disk_is_one_clear_error_and_frees_what_was_written(tmp_path):
    """A limit on the size of files stands in for the full disk."""
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from device_sdk.delivery.blobs import BlobWriter; from device_sdk.errors import StorageError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "folder = Path(sys.argv[1])\n"
        "try:\n"
        "    with BlobWriter(folder / 'partial', 'a' * 64, folder / 'blobs' / 'x', max_bytes=9999) as one:\n"
        "        for _ in range(5): one.append(bytes(300))\n"
        "except StorageError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "cannot write" in done.stdout, done.stderr
    assert partials(tmp_path) == []
    assert not (tmp_path / "blobs").exists()


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "partial").write_bytes(b"a file in the way")
    with pytest.raises(StorageError), writer(tmp_path):
        pass
