"""The guide's commands are ones that the command line takes, and its recipe one that is read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from device_sdk.errors import DataError
from packager.hybrid.command import package_hybrid
from packager.hybrid.recipe import load_hybrid_recipe

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "hybrid.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def test_the_recipe_is_read_and_has_the_defaults_it_shows(tmp_path):
    (text,) = blocks("toml")
    path = tmp_path / "hybrid.toml"
    path.write_text(text)
    recipe, default = load_hybrid_recipe(path), load_hybrid_recipe(None, budget_minutes=20.0)
    for name in recipe.__struct_fields__:
        if name not in ("base", "global_"):
            assert getattr(recipe, name) == getattr(default, name), name
    assert recipe.of_part(recipe.base)["renditions"] == ["fp32", "int8"]
    for line in re.findall(r"^# (\w+) = ", text, re.MULTILINE):
        assert line in recipe.__struct_fields__


def test_the_command_is_one_of_the_options_of_package_hybrid():
    command = next(one for one in blocks("") if one.startswith("pathweave package-hybrid"))
    words = shlex.split(command.replace("\\\n", " "))
    known = {option for parameter in package_hybrid.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_a_length_is_required():
    arguments = ["--base", "zoo:a", "--global", "zoo:b", "--data", "digits", "--val", "digits", "--out", "x"]
    result = CliRunner().invoke(package_hybrid, arguments)
    assert result.exit_code != 0
    assert "length of the training is missing" in str(result.exception)


@pytest.mark.slow
def test_two_models_with_the_same_answers_leave_a_router_nothing_to_learn(tmp_path):
    arguments = ["--base", "zoo:resnet_digits", "--global", "zoo:resnet_digits", "--data", "digits#train"]
    arguments += ["--routing-data", "digits#search", "--val", "digits#calibration", "--steps", "0", "--train", "r"]
    result = CliRunner().invoke(package_hybrid, [*arguments, "--out", str(tmp_path / "out"), "--json"])
    assert isinstance(result.exception, DataError)
    assert "a router has nothing to learn" in str(result.exception)
    assert "--routing-data" in result.exception.hint
