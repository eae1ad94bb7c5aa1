from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from packager.inputs.recipe import Recipe, load_recipe


def test_a_recipe_is_read_from_toml(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("steps = 7\ngamma = 1\nflip = false\nprecision = 'float32'  # ×\n", encoding="utf-8")
    assert load_recipe(path) == Recipe(steps=7, gamma=1.0, flip=False, precision="float32")


def test_overrides_that_are_given_replace_the_files_values(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("steps = 7\nseed = 3\nmax_span = 2")
    assert load_recipe(path, seed=0, max_span=None) == Recipe(steps=7, seed=0, max_span=2)


def test_without_a_file_the_overrides_are_the_recipe():
    assert load_recipe(None, budget_minutes=2, steps=None) == Recipe(budget_minutes=2.0)


@pytest.mark.parametrize(("length", "other"), [("steps", "budget_minutes"), ("budget_minutes", "steps")])
def test_a_length_on_the_command_line_replaces_the_other_kind_in_the_file(tmp_path, length, other):
    path = tmp_path / "r.toml"
    path.write_text(f"{other} = 7")
    recipe = load_recipe(path, **{length: 3})
    assert (getattr(recipe, length), getattr(recipe, other)) == (3, None)


def test_choices_are_all_fields_as_plain_values():
    choices = Recipe(steps=1).choices()
    assert set(choices) == set(Recipe.__struct_fields__)
    assert (choices["steps"], choices["budget_minutes"], choices["precision"]) == (1, None, "auto")
    assert all(value is None or isinstance(value, str | int | float | bool) for value in choices.values())


def test_lists_are_told_apart_in_the_choices():
    assert Recipe(steps=1).choices()["shrink_rates"] == "transformers"
    assert Recipe(steps=1, shrink_rates=()).choices()["shrink_rates"] == ""
    assert Recipe(steps=1, shrink_rates=(0.5, 0.25)).choices()["shrink_rates"] == "0.5, 0.25"
    assert Recipe(steps=1, shrink_rates="auto").choices()["shrink_rates"] == "auto"


def test_a_recipe_lists_rates_and_operators(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("steps = 7\nshrink_rates = [0.5, 0.25]\nfused = ['relu']\nidentity = true\n")
    assert load_recipe(path) == Recipe(steps=7, shrink_rates=(0.5, 0.25), fused=("relu",), identity=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither steps nor budget_minutes"),
        ("steps = 1\nbudget_minutes = 1", "both steps and budget_minutes"),
        ("steps = -1", "steps is negative"),
        ("budget_minutes = -0.5", "budget_minutes is negative"),
        ("budget_minutes = nan", "budget_minutes is not a finite number"),
        ("budget_minutes = inf", "budget_minutes is not a finite number"),
        ("steps = 1\ngamma = -1", "gamma is negative"),
        ("steps = 1\ncrop = -0.1", "crop is negative"),
        ("steps = 1\ncheckpoint_seconds = -1", "checkpoint_seconds is negative"),
        ("steps = 1\nmax_span = 0", "max_span is below 1"),
        ("steps = 1\nbatch = 0", "batch is below 1"),
        ("steps = 1\ntune_rate = 0", "tune_rate is not above 0"),
        ("steps = 1\ndistil_rate = -1", "distil_rate is not above 0"),
        ("steps = 1\ntemperature = 0", "temperature is not above 0"),
        ("steps = 1\ndistil_share = 1.5", "distil_share is not between 0 and 1"),
        ("steps = 1\nexit_positions = -1", "exit_positions is negative"),
        ("steps = 1\nexit_positions = 1.5", "exit_positions"),
        ("steps = 1\nexit_share = 1.5", "exit_share is not between 0 and 1"),
        ("steps = 1\nexit_share = -0.1", "exit_share is not between 0 and 1"),
        ("steps = 1\nexit_rate = 0", "exit_rate is not above 0"),
        ("steps = 1\nbatch = 1", "exits cannot be trained with a batch of 1"),
        ("steps = 1\nshrink_rates = [0.5, 1.0]", "shrink_rates are not all between 0 and 1"),
        ("steps = 1\nshrink_rates = [nan]", "shrink_rates are not all between 0 and 1"),
        ("steps = 1\nshrink_rates = 'some'", "shrink_rates"),
        ("steps = 1\nidentity_points = -1", "identity_points is negative"),
        ("steps = 1\npatience = -1", "patience is negative"),
        ("steps = 1\nrecalibrate_batches = -1", "recalibrate_batches is negative"),
        ("steps = 1\ncache_mb = -1", "cache_mb is negative"),
        ("steps = 1\ndevice = 'tpu'", "device"),
        ("steps = 1\ndistil_from = 'friend'", "distil_from"),
        ("steps = 1\nlabel_weight = 2", "label_weight is not between 0 and 1"),
        ("steps = 1.5", r"Expected `int . null`, got `float`.*steps"),
        ("steps = 'many'", r"steps"),
        ("steps = 1\nprecision = 'int8'", r"precision"),
        ("steps = 1\nstepps = 1", "unknown field `stepps`"),
        ("steps = ", "is not valid TOML"),
    ],
)
def test_wrong_recipes_are_refused_with_the_field_named(tmp_path, text, message):
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_recipe(path)
    assert "\n" not in str(caught.value)


def test_without_exits_a_batch_of_one_is_allowed():
    assert load_recipe(None, steps=1, batch=1, exit_positions=0).batch == 1


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not valid TOML"):
        load_recipe(tmp_path / "r.toml")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the recipe .*nowhere\.toml: No such file"):
        load_recipe(tmp_path / "nowhere.toml")
