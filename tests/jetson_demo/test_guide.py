"""docs/guide/run_on_a_jetson.md says what is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from device_sdk.energy import PowerModel
from jetson_demo.adapting import UNLABELLED_IMAGES
from jetson_demo.figures import RECENT
from jetson_demo.run_demo import DEFAULT_RATIO, run_demo

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "run_on_a_jetson.md").read_text()
COMMANDS = re.findall(r"^python jetson_demo/run_demo\.py (.*)$", GUIDE, flags=re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_understood(command):
    context = run_demo.make_context("run_demo.py", command.split())
    assert isinstance(context, click.Context)


def test_there_are_commands():
    assert len(COMMANDS) >= 4


def test_the_options_that_it_names_exist():
    known = {option for parameter in run_demo.params for option in parameter.opts}
    assert set(re.findall(r"`[^`\n]*?(--[a-z-]+)", GUIDE)) - {"--help", "--work"} <= known


def test_its_numbers_are_the_scripts():
    assert f"({DEFAULT_RATIO:.0%} of the full model's".replace("%", " %") in GUIDE
    assert f"up to {UNLABELLED_IMAGES} images" in GUIDE
    assert f"the last {RECENT} images" in GUIDE
    assert f"`{PowerModel(busy_w=10).source}`" in GUIDE


def test_every_file_of_the_script_is_in_its_readme():
    readme = (ROOT / "jetson_demo" / "README.md").read_text()
    files = {path.name for path in (ROOT / "jetson_demo").glob("*.py")} - {"__init__.py"}
    assert files <= set(re.findall(r"`(\w+\.py)`", readme))
