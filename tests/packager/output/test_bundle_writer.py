from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import SignatureError, StorageError
from device_sdk.signing.signatures import new_key_pair
from packager.output.bundle_folder import BundleWriter
from packager.output.output_claim import OutputClaim
from tests.packager.output.small_bundle import BLOB, ROOT, manifest_of, write


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_written_bundle_opens_and_verifies(tmp_path):
    with OutputClaim(tmp_path / "out") as claim, BundleWriter(claim) as writer:
        name = writer.add_blob(BLOB)
        writer.add_note("packaging.json", b"{}")
        writer.finish(manifest_of(name, size=len(BLOB)), private_key=None)
    assert name == hashlib.sha256(BLOB).hexdigest()
    Bundle.open(tmp_path / "out").verify()
    assert set(contents(tmp_path)) == {"out/manifest.json", "out/packaging.json", f"out/blobs/{name}"}


def test_equal_blobs_are_stored_once(tmp_path):
    with OutputClaim(tmp_path / "out") as claim, BundleWriter(claim) as writer:
        assert writer.add_blob(BLOB) == writer.add_blob(BLOB)
        writer.finish(manifest_of(writer.add_blob(BLOB), size=len(BLOB)), private_key=None)
    assert len(list((tmp_path / "out" / "blobs").iterdir())) == 1


def test_a_new_bundle_replaces_the_old_one_whole(tmp_path):
    write(tmp_path / "out", data=b"old")
    write(tmp_path / "out", data=b"new", version=2)
    bundle = Bundle.open(tmp_path / "out")
    bundle.verify()
    assert bundle.manifest.version == 2
    assert len(list((tmp_path / "out" / "blobs").iterdir())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_at_the_target_before_everything_is_written(tmp_path):
    with OutputClaim(tmp_path / "out") as claim, BundleWriter(claim) as writer:
        writer.add_blob(BLOB)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("there_before", [False, True])
def test_an_exception_leaves_the_target_untouched_and_nothing_else(tmp_path, there_before):
    if there_before:
        write(tmp_path / "out", data=b"old")
    before = contents(tmp_path)
    with pytest.raises(TypeError), OutputClaim(tmp_path / "out") as claim, BundleWriter(claim) as writer:
        writer.finish(manifest_of(writer.add_blob(BLOB)), private_key=None)  # the size is missing
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"] * there_before


def test_what_a_killed_process_left_is_cleaned_away(tmp_path):
    killed = "import os, signal, sys; from pathlib import Path\n"
    killed += "from packager.output.bundle_folder import BundleWriter\n"
    killed += "from packager.output.output_claim import OutputClaim\n"
    killed += "with OutputClaim(Path(sys.argv[1])) as claim, BundleWriter(claim) as writer:\n"
    killed += "    writer.add_blob(b'half'); os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", killed, str(tmp_path / "out")], env=_environment(), timeout=60)
    assert done.returncode == -9
    assert contents(tmp_path)
    assert not (tmp_path / "out").exists()
    write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list((tmp_path / "out" / "blobs").iterdir())) == 1


def test_a_target_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write(tmp_path / "file" / "out")
    assert contents(tmp_path) == {"file": b""}


# Signing


def test_a_signed_bundle_opens_with_its_key_alone(tmp_path):
    for name in ("mine", "other"):
        private, public = new_key_pair()
        (tmp_path / f"{name}.key").write_bytes(private)
        (tmp_path / f"{name}.pub").write_bytes(public)
    write(tmp_path / "out", key=tmp_path / "mine.key")
    assert Bundle.open(tmp_path / "out", trust=tmp_path / "mine.pub").has_signature
    with pytest.raises(SignatureError, match=r"not by other\.pub"):
        Bundle.open(tmp_path / "out", trust=tmp_path / "other.pub")


def test_a_key_that_cannot_sign_leaves_the_target_untouched(tmp_path):
    write(tmp_path / "out", data=b"old")
    (tmp_path / "broken.key").write_text("no key")
    before = contents(tmp_path)
    with pytest.raises(SignatureError, match=r"broken\.key is not a private key"):
        write(tmp_path / "out", key=tmp_path / "broken.key")
    assert contents(tmp_path) == before


# A full disk


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 64 KB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=60)


def test_a_full_disk_leaves_the_old_bundle_untouched(small_disk):
    write(small_disk / "out", data=b"old")
    before = contents(small_disk)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        write(small_disk / "out", data=b"x" * 100_000, version=2)
    assert "free some space" in str(caught.value.hint)
    assert contents(small_disk) == before
    assert Bundle.open(small_disk / "out").manifest.version == 1
    write(small_disk / "out", data=b"y" * 20_000, version=2)  # there is room again


_WITH_LIMIT = """
import resource, sys
from pathlib import Path
from device_sdk.errors import StorageError
from packager.output.bundle_folder import BundleWriter
from packager.output.output_claim import OutputClaim
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    with OutputClaim(Path(sys.argv[1])) as c, BundleWriter(c) as writer:
        writer.add_blob(b"x" * 5_000)
        writer.add_blob(b"y" * 50_000)
except StorageError as error:
    print(error)
"""


def test_a_write_that_the_system_cuts_off_leaves_the_old_bundle_untouched(tmp_path):
    write(tmp_path / "out", data=b"old")
    before = contents(tmp_path)
    command = [sys.executable, "-c", _WITH_LIMIT, str(tmp_path / "out")]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("cannot write")
    assert done.stdout.endswith("File too large\n")
    assert contents(tmp_path) == before


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
