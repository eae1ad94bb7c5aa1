from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from packager.errors import OutputBusyError, PackagingError
from packager.output.bundle_folder import BundleWriter
from packager.output.output_claim import OutputClaim, work_folder
from tests.packager.output.small_bundle import BLOB, ROOT, manifest_of, write

_HOLDS = """
import sys
from pathlib import Path
from packager.output.output_claim import OutputClaim
with OutputClaim(Path(sys.argv[1])):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def start_holder(out: Path) -> subprocess.Popen[str]:
    """Another process that has claimed ``out``."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    return process


def test_a_second_writer_is_refused_and_learns_which_process_holds_the_folder(tmp_path):
    with start_holder(tmp_path / "out") as holder:
        with pytest.raises(OutputBusyError, match=f"out is being written by process {holder.pid}$") as caught:
            write(tmp_path / "out")
        assert "--out" in str(caught.value.hint)
        holder.communicate()
    write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_lock_dies_with_its_process(tmp_path):
    with start_holder(tmp_path / "out") as holder:
        holder.kill()
    write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    held = OutputClaim(tmp_path / "out")
    held.__enter__()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    try:
        held.__exit__()
        write(tmp_path / "out")
    finally:
        os.close(writes)
        os.waitpid(child, 0)


def test_two_claims_in_one_process_exclude_each_other(tmp_path):
    with OutputClaim(tmp_path / "out"), pytest.raises(OutputBusyError):
        write(tmp_path / "out")


def test_a_link_is_claimed_as_what_it_points_to(tmp_path):
    write(tmp_path / "real", data=b"old")
    (tmp_path / "link").symlink_to("real")
    with OutputClaim(tmp_path / "real"), pytest.raises(OutputBusyError):
        write(tmp_path / "link")
    write(tmp_path / "link", data=b"new", version=2)
    assert (tmp_path / "link").is_symlink()
    assert Bundle.open(tmp_path / "real").manifest.version == 2


def test_a_blob_that_is_lost_meanwhile_leaves_the_old_bundle(tmp_path):
    write(tmp_path / "out", data=b"old")
    with OutputClaim(tmp_path / "out") as claim, BundleWriter(claim) as writer:
        name = writer.add_blob(BLOB)
        (lost,) = tmp_path.rglob(name)
        lost.unlink()
        with pytest.raises(PackagingError, match=r"was not replaced: blob .* is missing"):
            writer.finish(manifest_of(name, size=len(BLOB), version=2), private_key=None)
    assert Bundle.open(tmp_path / "out").manifest.version == 1


def test_a_blob_that_is_altered_meanwhile_leaves_the_old_bundle(tmp_path):
    write(tmp_path / "out", data=b"old")
    with OutputClaim(tmp_path / "out") as claim, BundleWriter(claim) as writer:
        name = writer.add_blob(BLOB)
        (altered,) = tmp_path.rglob(name)
        altered.write_bytes(BLOB[::-1])
        with pytest.raises(PackagingError, match=r"was not replaced: blob .* does not match its digest"):
            writer.finish(manifest_of(name, size=len(BLOB), version=2), private_key=None)
    assert Bundle.open(tmp_path / "out").manifest.version == 1


def test_what_killed_runs_left_is_deleted_and_what_resumes_them_is_kept(tmp_path):
    work = work_folder(tmp_path / "out")
    (work / "features.x1y2").mkdir(parents=True)
    (work / "features.x1y2" / "cut_1.f16").write_bytes(b"large")
    for name in (".state.pt.x1y2", "state.pt", "answers.0-of-1.f32"):
        (work / name).write_bytes(b"x")
    (work / "run.json").write_text('{"pathweave": "0"}')
    for name in (f".out.writing.{'0' * 16}", f".out.work.discarded.{'a' * 16}", ".outer.writing"):
        (tmp_path / name).mkdir()
    with OutputClaim(tmp_path / "out"):
        pass
    assert {path.name for path in work.iterdir()} == {"state.pt", "run.json", "answers.0-of-1.f32"}
    assert {path.name for path in tmp_path.iterdir()} == {"out.work", ".outer.writing"}


def test_what_others_left_under_these_names_stays(tmp_path):
    """Work folders, exchanged folders and temporaries whose names alone look like ours."""
    for folder in ("out.work", ".out.ready", ".out.replaced", ".out.writing"):
        (tmp_path / folder / "features.old").mkdir(parents=True)
        (tmp_path / folder / ".env").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with OutputClaim(tmp_path / "out"):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_of_the_locks_name_is_not_overwritten(tmp_path):
    (tmp_path / ".out.lock").write_text("poetry, not a process")
    with pytest.raises(PackagingError, match="not a lock of packaging"):
        write(tmp_path / "out")
    assert (tmp_path / ".out.lock").read_text() == "poetry, not a process"


def test_a_folder_filled_while_packaging_runs_is_not_replaced(tmp_path):
    with OutputClaim(tmp_path / "out") as claim, BundleWriter(claim) as writer:
        name = writer.add_blob(BLOB)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes.txt").write_text("mine")
        with pytest.raises(PackagingError, match=r"no part of a bundle: notes\.txt"):
            writer.finish(manifest_of(name, size=len(BLOB)), private_key=None)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
