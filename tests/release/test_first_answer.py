"""The wheel in a bare environment: a first answer within seconds and megabytes."""

from __future__ import annotations

import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from release.building import address, build, check
from release.first_answer import (
    MOST_BYTES,
    MOST_SECONDS,
    FirstAnswer,
    NoIndexError,
    above_limits,
    first_answer,
)
from release.sources import version_of

ROOT = Path(__file__).parents[2]
WITHIN = FirstAnswer("blue", MOST_SECONDS, 1.0, 1.0, 1.0, MOST_BYTES, 0, 0, {})


def test_what_is_above_a_limit_is_told() -> None:
    assert above_limits(WITHIN) == []
    assert above_limits(replace(WITHIN, seconds=121.0)) == ["the first answer took 121 s; 120 s at most"]
    assert above_limits(replace(WITHIN, installed_bytes=201_000_000)) == ["201 MB are installed; 200 MB at most"]


@pytest.mark.slow
def test_the_wheel_built_from_the_sdist_answers_in_a_bare_environment(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_bytes((ROOT / name).read_bytes())
    address(sources, url=None, tag="v0")
    sdist, wheel = build(sources, tmp_path / "dist", timestamp=1_790_000_000)
    check(sdist, wheel, version=version_of(ROOT))
    (tmp_path / "bare").mkdir()
    try:
        found = first_answer(wheel, tmp_path / "bare", cached=True)  # time is measured by the script, not by a test
    except NoIndexError as error:
        pytest.skip(f"no package index can be reached: {error}")
    assert found.answer == "blue"
    assert above_limits(replace(found, seconds=0.0)) == []
    assert not list((tmp_path / "bare").rglob("torch"))


def test_a_machine_without_an_index_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = tmp_path / "needs-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        needs = "Metadata-Version: 2.1\nName: needs\nVersion: 1.0\nRequires-Dist: click\n"
        archive.writestr("needs-1.0.dist-info/METADATA", needs)
        archive.writestr("needs-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("needs-1.0.dist-info/RECORD", "")
    with pytest.raises(NoIndexError):
        first_answer(wheel, tmp_path / "bare")
