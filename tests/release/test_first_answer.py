"""Limits of a first answer, and a machine that cannot install anything."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from release.first_answer import MOST_BYTES, MOST_SECONDS, FirstAnswer, NoIndexError, above_limits, first_answer

WITHIN = FirstAnswer("blue", MOST_SECONDS, 1.0, 1.0, 1.0, MOST_BYTES, 0, 0, {})


def test_what_is_above_a_limit_is_told() -> None:
    assert above_limits(WITHIN) == []
    assert above_limits(replace(WITHIN, seconds=121.0)) == ["the first answer took 121 s; 120 s at most"]
    assert above_limits(replace(WITHIN, installed_bytes=201_000_000)) == ["201 MB are installed; 200 MB at most"]


def test_a_machine_without_an_index_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = tmp_path / "needs-1.0-py3-none-any.whl"
    needs = "Metadata-Version: 2.1\nName: needs\nVersion: 1.0\nRequires-Dist: click\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("needs-1.0.dist-info/METADATA", needs)
        archive.writestr("needs-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("needs-1.0.dist-info/RECORD", "")
    with pytest.raises(NoIndexError):
        first_answer(wheel, tmp_path / "bare")
