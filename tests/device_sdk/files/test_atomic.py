from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import StorageError
from device_sdk.files.atomic import remove_temporaries, storage_errors, unique, write_atomically, write_if_changed

ROOT = Path(__file__).parents[3]


@given(st.binary(max_size=100))
def test_what_was_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("atomic") / "new" / "folder" / "file"
    write_atomically(path, data)
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == ["file"]


def test_an_existing_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"a longer first version")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"


def test_a_folder_in_the_way_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(StorageError, match="cannot write") as caught:
        write_atomically(tmp_path / "file", b"data")
    assert caught.value.hint
    assert os.listdir(tmp_path) == ["file"]


def test_a_parent_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(StorageError):
        write_atomically(tmp_path / "file" / "below", b"data")
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_full_disk_keeps_the_old_file_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk."""
    (tmp_path / "file").write_bytes(b"old")
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from device_sdk.files.atomic import write_atomically; from device_sdk.errors import StorageError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomically(Path(sys.argv[1]), bytes(5000))\n"
        "except StorageError as error: print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, str(tmp_path / "file")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "StorageError\n", done.stderr
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_kill_at_any_moment_leaves_a_whole_version(tmp_path: Path) -> None:
    path = tmp_path / "file"
    script = (
        "import itertools, sys; from pathlib import Path\n"
        "from device_sdk.files.atomic import write_atomically\n"
        "for turn in itertools.count(): write_atomically(Path(sys.argv[1]), bytes([turn % 256]) * 200_000)\n"
    )
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=ROOT)
        deadline_s = time.monotonic() + 30
        while not path.exists() and time.monotonic() < deadline_s:
            time.sleep(0.005)
        time.sleep(0.02)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        data = path.read_bytes()
        assert len(data) == 200_000
        assert len(set(data)) == 1


def test_readers_only_ever_see_whole_versions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    versions = [bytes([number]) * 10_000 for number in range(30)]
    write_atomically(path, versions[0])
    seen: list[bytes] = []
    finished = threading.Event()

    def read() -> None:
        while not finished.is_set():
            seen.append(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for version in versions:
        write_atomically(path, version)
    finished.set()
    reader.join()
    assert set(seen) <= set(versions)


def test_only_errors_of_the_system_are_translated(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), storage_errors(tmp_path):
        raise ValueError("mine")
    with pytest.raises(StorageError, match="No space left"), storage_errors(tmp_path):
        raise OSError(28, "No space left on device")


def test_the_folder_is_synced_after_the_rename(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    def watch(frame: FrameType, event: str, argument: object) -> None:
        name = getattr(argument, "__name__", "")
        if event == "c_call" and name in ("fsync", "replace"):
            calls.append((name, frame.f_code.co_name))

    sys.setprofile(watch)
    try:
        write_atomically(tmp_path / "file", b"data")
    finally:
        sys.setprofile(None)
    assert calls == [("fsync", "write_atomically"), ("replace", "write_atomically"), ("fsync", "sync_folder")]


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_if_changed(path, b"one")
    first = path.stat().st_ino
    write_if_changed(path, b"one")
    assert path.stat().st_ino == first
    write_if_changed(path, b"two")
    assert path.read_bytes() == b"two"


def test_temporaries_of_dead_writers_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    writer = subprocess.Popen(["sleep", "60"])
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = [f".file.{pid}.ab.tmp" for pid in (writer.pid, dead.pid, os.getpid(), 0)]
    for name in [*names, "file", ".hidden", f".file.{os.getpid()}.{unique()}.tmp"]:
        (tmp_path / name).touch()
    remove_temporaries(tmp_path)
    remove_temporaries(tmp_path / "missing")
    left = {path.name for path in tmp_path.iterdir()}
    writer.kill()
    writer.wait()
    assert left >= {names[0], "file", ".hidden"}
    assert left.isdisjoint(names[1:])
    assert len(left) == 4
