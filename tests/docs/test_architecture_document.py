"""docs/architecture.md names files that exist, in rows that a small screen shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
BASES = [ROOT, *(ROOT / folder for folder in ("device_sdk", "packager", "server", "benchmarks"))]
LONGEST_ROW = 300


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w/]+/\w+\.py)`", TEXT))))
def test_a_file_that_it_names_exists(path: str) -> None:
    assert any((base / path).is_file() for base in BASES)


@pytest.mark.parametrize("room", sorted(set(re.findall(r"`((?:policies|session|search|live)/\w+(?:/\w+)?)/?`", TEXT))))
def test_a_room_that_it_names_exists(room: str) -> None:
    place = ROOT / "device_sdk" / room
    assert place.is_dir() or place.with_suffix(".py").is_file()


def test_no_row_of_a_table_is_long() -> None:
    assert [line for line in TEXT.splitlines() if line.startswith("|") and len(line) > LONGEST_ROW] == []
