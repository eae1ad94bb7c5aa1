"""The guide's commands are ones that the command line takes, and its recipe one that is read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from device_sdk.errors import DataError, UsageError
from packager.commands.package import package
from packager.hybrid.job import load_hybrid_recipe, read_pair

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "hybrid.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def test_the_recipe_is_read_and_has_the_defaults_it_shows(tmp_path):
    _, text = blocks("toml")
    path = tmp_path / "hybrid.toml"
    path.write_text(text)
    recipe, default = load_hybrid_recipe(path), load_hybrid_recipe(None, budget_minutes=20.0)
    for name in recipe.__struct_fields__:
        if name not in ("base", "global_"):
            assert getattr(recipe, name) == getattr(default, name), name
    assert recipe.of_part(recipe.base)["renditions"] == ["fp32", "int8"]
    for line in re.findall(r"^# (\w+) = ", text, re.MULTILINE):
        assert line in recipe.__struct_fields__


def test_the_pair_is_read(tmp_path):
    (tmp_path / "pair.toml").write_text(blocks("toml")[0])
    pair = read_pair(tmp_path / "pair.toml", budget_minutes=20.0)
    assert (pair.base.specification, pair.global_.specification) == ("zoo:resnet8_mlperf_tiny", "zoo:resnet56_cifar10")
    assert pair.base.weights == Path("resnet8_mlperf_tiny.safetensors")
    assert pair.routing == "cifar10/test.zip#search"
    assert (pair.recipe.train, pair.recipe.coverage, pair.recipe.base) == ("rb", 0.7, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[base]\nmodel = "zoo:a"', "[global]"),
        ('steps = 0\n[base]\nmodel = 1\n[global]\nmodel = "zoo:b"', "[base]"),
        ('[base]\nmodel = "zoo:a"\npreprocessing = "odd"\n[global]\nmodel = "zoo:b"', "MEAN/STD"),
        ('steps = 0\nodd = 1\n[base]\nmodel = "zoo:a"\n[global]\nmodel = "zoo:b"', "odd"),
        ('[base]\nmodel = "zoo:a"\n[global]\nmodel = "zoo:b"', "steps or budget_minutes"),
        ('base = 1\n[global]\nmodel = "zoo:b"', "[base]"),
        ('routing_data = 1\n[base]\nmodel = "zoo:a"\n[global]\nmodel = "zoo:b"', "routing_data"),
        ("=", "not valid TOML"),
    ],
)
def test_a_file_that_describes_no_pair_is_one_line(tmp_path, text, words):
    (tmp_path / "pair.toml").write_text(text)
    with pytest.raises(UsageError) as refused:
        read_pair(tmp_path / "pair.toml")
    assert words in str(refused.value)


def test_the_command_is_one_of_the_options_of_package():
    command = next(one for one in blocks("") if one.startswith("pathweave package --pair"))
    words = shlex.split(command.replace("\\\n", " "))
    known = {option for parameter in package.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_options_of_a_single_model_do_not_go_with_a_pair(tmp_path):
    (tmp_path / "pair.toml").touch()
    arguments = ["--pair", str(tmp_path / "pair.toml"), "--data", "digits", "--val", "digits", "--out", "x"]
    result = CliRunner().invoke(package, [*arguments, "--exits", "2"])
    assert isinstance(result.exception, UsageError)
    assert "--exits does not go with --pair" in str(result.exception)


@pytest.mark.slow
def test_two_models_with_the_same_answers_leave_a_router_nothing_to_learn(tmp_path):
    models = '[base]\nmodel = "zoo:resnet_digits"\n[global]\nmodel = "zoo:resnet_digits"\n'
    (tmp_path / "pair.toml").write_text(f'train = "r"\nrouting_data = "digits#search"\n{models}')
    arguments = ["--pair", str(tmp_path / "pair.toml"), "--data", "digits#train", "--val", "digits#calibration"]
    result = CliRunner().invoke(package, [*arguments, "--steps", "0", "--out", str(tmp_path / "out"), "--json"])
    assert isinstance(result.exception, DataError)
    assert "a router has nothing to learn" in str(result.exception)
    assert "routing_data" in result.exception.hint
