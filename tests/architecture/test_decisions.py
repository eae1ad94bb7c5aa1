from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "adr"
DECISIONS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_numbered_as_its_file_and_listed_by_its_title(path):
    title = re.fullmatch(r"# (\d+)\. (.+)", path.read_text().splitlines()[0])
    assert title is not None
    assert int(title[1]) == int(path.name[:4])
    assert f"* [{title[1]}]({path.name}) {title[2]}\n" in (FOLDER / "README.md").read_text()


def test_no_two_decisions_have_one_number():
    numbers = [path.name[:4] for path in DECISIONS]
    assert len(set(numbers)) == len(numbers)
