"""A writer that is killed at any of its system calls leaves the old bundle or the new one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from packager.output.output_claim import OutputClaim
from tests.packager.output.small_bundle import ROOT, write

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def seed(tmp_path) -> Path:
    write(tmp_path / "seed" / "out", data=b"old")
    return tmp_path / "seed"


def killed_at_each_call(seed: Path, folder: Path, way: str) -> list[Path]:
    """The folders of the killed writers."""
    script = Path(__file__).with_name("crash_points.py")
    done = subprocess.run(
        [sys.executable, script, seed, folder, way],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [folder / str(number + 1) for number in range(int(done.stdout))]


def whole_version(out: Path) -> int:
    bundle = Bundle.open(out)
    bundle.verify()
    return bundle.manifest.version


def recovered_version(out: Path) -> int:
    """The version that the next run finds; nothing else is left beside it."""
    with OutputClaim(out):
        version = whole_version(out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    return version


def test_with_an_atomic_exchange_there_is_a_whole_bundle_at_every_moment(seed, tmp_path):
    killed = killed_at_each_call(seed, tmp_path / "made", "swap")
    versions = [whole_version(folder / "out") for folder in killed]
    assert versions == sorted(versions)
    assert set(versions) == {1, 2}
    assert [recovered_version(folder / "out") for folder in killed] == versions


def test_without_it_the_next_run_finds_the_old_bundle_or_the_new_one(seed, tmp_path):
    killed = killed_at_each_call(seed, tmp_path / "made", "renames")
    missing = [folder for folder in killed if not (folder / "out").exists()]
    assert missing  # between the renames
    versions = [recovered_version(folder / "out") for folder in killed]
    assert versions == sorted(versions)
    assert set(versions) == {1, 2}


def test_a_first_bundle_is_there_whole_or_not_at_all(tmp_path):
    (tmp_path / "seed").mkdir()
    killed = killed_at_each_call(tmp_path / "seed", tmp_path / "made", "swap")
    there = [folder / "out" for folder in killed if (folder / "out").exists()]
    assert 0 < len(there) < len(killed)
    assert {whole_version(out) for out in there} == {2}
    for folder in killed:
        write(folder / "out", data=b"again")
        assert [path.name for path in folder.iterdir()] == ["out"]


def test_a_recovery_that_is_killed_is_recovered_from(seed, tmp_path):
    shutil.copytree(seed / "out", seed / ".out.ready")
    os.rename(seed / "out", seed / ".out.replaced")
    killed = killed_at_each_call(seed, tmp_path / "made", "claim")
    assert len(killed) > 5
    assert {recovered_version(folder / "out") for folder in killed} == {1}
