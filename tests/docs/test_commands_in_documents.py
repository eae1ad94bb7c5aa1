"""Every ``pathweave`` command in the README and the guides exists, with the options that are shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from pathweave.cli import COMMANDS, load_command

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "guide").glob("*.md"))]
FENCED = re.compile(r"^```(?:sh|console|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONTEXTS = ("pathweave keys", "pathweave release")  # of signatures
INLINE = re.compile(r"`(pathweave [^`]+)`")


def command_lines(text: str) -> list[str]:
    """The commands of a document, in blocks and in sentences."""
    blocks = "\n".join(FENCED.findall(text)).replace("\\\n", " ")
    found = re.findall(r"^(?:\$ )?(?:.*&& )?(pathweave .*)$", blocks, re.MULTILINE)
    return [*found, *INLINE.findall(FENCED.sub("", text))]


def unknown_words(line: str) -> set[str]:
    """The command or the options of a line that do not exist; words in capitals and … stand for anything."""
    _, name, *rest = shlex.split(line.replace("…", " "), comments=True)
    if name.startswith("-") or name.isupper() or line in CONTEXTS:
        return set()
    if name not in COMMANDS:
        return {name}
    command = load_command(name)
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.partition("=")[0] for word in rest if word.startswith("--") and len(word) > 2} - known - {"--help"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_its_commands_and_options_exist(document: Path) -> None:
    wrong = {line: sorted(unknown_words(line)) for line in command_lines(document.read_text()) if unknown_words(line)}
    assert not wrong


def test_commands_are_found_in_blocks_and_sentences() -> None:
    block = "```sh\nmake && pathweave plan \\\n  --x\n$ pathweave adapt X --data Y  # --z\n```\n"
    text = "Say `pathweave adapt --nonsense`.\n" + block
    assert [sorted(unknown_words(line)) for line in command_lines(text)] == [["plan"], [], ["--nonsense"]]
