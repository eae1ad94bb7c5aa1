"""docs/guide/from_checkpoint_to_phone.md names options that there are, and callables that can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from packager.inputs.model_loader import load_model
from packager.inputs.pixels import NAMED, Pixels
from pathweave.cli import load_command

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "from_checkpoint_to_phone.md").read_text()


def _blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def _command_lines() -> list[list[str]]:
    text = "\n".join(_blocks("")).replace("\\\n", " ")
    return [line.split("#")[0].split()[1:] for line in text.splitlines() if line.startswith("pathweave ")]


@pytest.mark.parametrize("words", _command_lines(), ids=lambda words: words[0])
def test_every_option_of_the_guide_is_one_of_the_command(words):
    name, *rest = words
    command = load_command(name)
    while isinstance(command, click.Group):
        name, *rest = rest
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_the_guide_goes_from_a_check_to_the_server():
    assert [words[0] for words in _command_lines()] == [
        "sign",
        "package",
        "package",
        "inspect",
        "adapt",
        "run",
        "serve",
    ]


def test_the_guides_callable_is_a_model_of_ours(tmp_path, monkeypatch):
    pytest.importorskip("timm")
    (tmp_path / "mine_of_the_guide.py").write_text(_blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    loaded = load_model("mine_of_the_guide:flowers", pixels=Pixels(NAMED["inception"]))
    assert loaded.input_shape == (3, 224, 224)
    assert loaded.module.get_classifier().out_features == 17


def test_the_guides_other_callable_is_python():
    compile(_blocks("python")[1], "mine_hf.py", "exec")
