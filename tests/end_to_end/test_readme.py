"""The README's commands are run, and what they print is what the README shows, numbers and times aside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), flags=re.MULTILINE | re.DOTALL)


def _commands() -> list[tuple[str, str]]:
    """(command, what it prints) of every console block, in order."""
    found = []
    for block in _blocks("console"):
        for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = piece.partition("\n")
            found.append((command, output))
    return found


def _shape(text: str) -> list[str]:
    """The words of each line; numbers, block ids and table borders left out, since they differ from run to run.

    So does the line that says that the device is busy.
    """
    text = re.sub(r"\b[omsi]\d+(-\d+)?\b", "", text)
    text = re.sub(r"[^A-Za-z\n]+", " ", text)
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("the device is busy")]


def _run(arguments: list[str], folder: Path) -> str:
    environment = os.environ | {"PATHWEAVE_STATE": str(folder / "state"), "COLUMNS": "120", "CI": "true"}
    environment["PYTHONPATH"] = str(README.parent)
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_commands_print_what_the_readme_shows(demo_folder: Path) -> None:
    commands = [(command, shown) for command, shown in _commands() if command.startswith("pathweave ")]
    assert len(commands) >= 4
    for command, shown in commands:
        if command.startswith("pathweave demo"):
            continue  # the fixture ran it; the others use what it left
        printed = _run([sys.executable, "-m", *command.split()], demo_folder.parent)
        assert _shape(printed) == _shape(shown), command


@pytest.mark.slow
def test_readme_python_runs(demo_folder: Path) -> None:
    blocks = _blocks("python")
    assert blocks
    for block in blocks:
        _run([sys.executable, "-c", block], demo_folder.parent)


def test_readme_lists_every_command() -> None:
    from pathweave.cli import COMMANDS

    text = README.read_text()
    missing = [name for name in COMMANDS if f"`pathweave {name}" not in text]
    assert not missing


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_names_the_two_commands_that_do_everything(command: str) -> None:
    assert command in README.read_text()
