"""Docstrings open with a noun or a verb, so that a reader sees at once what a thing is or does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("device_sdk", "packager", "server", "pathweave", "benchmarks", "jetson_demo")
HIDDEN = ("What", "Whether", "How", "Which", "Where", "Those", "Who")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def openings(path: Path) -> list[str]:
    """Places in ``path`` whose docstring opens with a word that hides the subject."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) and text.split()[0] in HIDDEN:
            found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_their_subject(folder: str) -> None:
    assert [one for path in sorted((ROOT / folder).rglob("*.py")) for one in openings(path)] == []
