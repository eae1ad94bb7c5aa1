"""Lines per room stay within ``sizes.toml``.

A room that grows beyond its budget either loses lines elsewhere, or the budget is raised in the same commit, which says
why. ``python tests/architecture/test_sizes.py`` prints the sizes of now.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGETS: dict[str, int] = tomllib.loads(Path(__file__).with_name("sizes.toml").read_text()).get("lines", {})
FOLDERS = ("device_sdk", "packager", "server", "pathweave")
KOTLIN = "android_demo/core/src/main"


def lines(room: str) -> int:
    """Lines of Python and Kotlin in ``room``: a folder, or the files right in one if it ends with a slash."""
    folder = ROOT / room.rstrip("/")
    found = folder.glob("*") if room.endswith("/") else folder.rglob("*")
    return sum(len(path.read_text().splitlines()) for path in found if path.suffix in (".py", ".kt"))


def rooms() -> list[str]:
    """Every room that has a budget: Python's folders, the files beside them, and Kotlin's core as a whole."""
    found = []
    for folder in FOLDERS:
        inner = sorted(path for path in (ROOT / folder).iterdir() if path.is_dir() and any(path.glob("*.py")))
        found += [f"{folder}/", *(path.relative_to(ROOT).as_posix() for path in inner)]
    return [*found, KOTLIN]


def test_every_room_has_a_budget_and_every_budget_a_room():
    assert sorted(rooms()) == sorted(BUDGETS)


@pytest.mark.parametrize("room", sorted(BUDGETS))
def test_a_room_stays_within_its_budget(room):
    assert lines(room) <= BUDGETS[room], "raise the budget in sizes.toml with the reason, or leave something out"


if __name__ == "__main__":
    print("[lines]")
    for room in rooms():
        print(f'"{room}" = {lines(room)}')
