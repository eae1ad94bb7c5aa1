"""The notebook of the guide runs from its first cell to its last, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from pathweave.cli import main

NOTEBOOK = Path(__file__).parents[2] / "docs" / "guide" / "first_steps.ipynb"
COMMAND = re.compile(r"^!pathweave (.*)$", re.MULTILINE)


def cells(kind: str) -> list[str]:
    """The sources of all cells of a kind, in order."""
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def as_python(cell: str) -> str:
    """A cell with its command lines as calls of the command line's function."""
    return COMMAND.sub(lambda found: f"_run({shlex.split(found[1])!r})", cell.replace("\\\n", " "))


def succeeds(arguments: list[str]) -> None:
    assert main(arguments) == 0


def test_its_cells_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "onnxscript", "sklearn"):
        pytest.importorskip(module, reason="needs the extra: pip install 'pathweave[packager]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names: dict[str, object] = {"_run": succeeds}
    for number, cell in enumerate(cells("code")):
        exec(compile(as_python(cell), f"cell {number} of {NOTEBOOK.name}", "exec"), names)
    assert names["accuracy"] > 0.8  # type: ignore[operator]
    assert (tmp_path / "bundle" / "README.md").exists()


def test_it_is_stored_without_outputs_in_the_form_that_notebooks_have() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_its_links_lead_to_files() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", "\n".join(cells("markdown")))
    assert linked
    assert all((NOTEBOOK.parent / path).exists() for path in linked)
