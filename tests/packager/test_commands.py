"""The packager's commands: what they print, and one clear line for whatever cannot be packaged."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from device_sdk.bundles.bundle import Bundle
from device_sdk.commands.command_options import load_data
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.paths import architecture_count
from packager.inputs.model_loader import load_model

DIGITS = ("--data", "digits#train", "--val", "digits#search")
ZOO = ("--model", "zoo:resnet_digits")
LENGTH = ("--steps", "0")
EXIT_KEYS = {"id", "position", "branch", "parameters", "macs", "accuracy"}


def architectures(folder: Path) -> str:
    """How many the bundle has: what a fit of its blocks leaves out is a matter of the last digits."""
    return str(architecture_count(Bundle.open(folder).supernet))


# package and inspect


def test_package_prints_one_json_object(packaged, pathweave, package_arguments):
    done = pathweave(*package_arguments, "--out", "reference")
    assert done.status == 0
    result = done.result
    assert result["bundle"] == "reference"
    assert result["architecture_count"] == architectures(packaged)
    assert result["steps"] == {"distil": 14, "tune": 27, "exits": 7}
    assert all(exit_.keys() == EXIT_KEYS and 0 <= exit_["accuracy"] <= 1 for exit_ in result["exits"])
    assert len(result["exits"]) == 6
    assert 0 <= result["original_accuracy"] <= 1
    assert all(0 <= found["accuracy"] <= 1 for found in result["range_accuracy"])


def test_package_tells_a_person_how_the_bundle_turned_out(packaged, pathweave, package_arguments):
    done = pathweave(*[a for a in package_arguments if a != "--json"], "--out", "reference")
    lines = done.out.splitlines()
    blocks = len(Bundle.open(packaged).supernet.blocks)
    assert lines[0] == f"reference: {blocks} blocks, {architectures(packaged)} architectures"
    assert "validated on digits#search (372 samples)" in lines[1]
    assert sum("exit x" in line for line in lines) == 6
    assert any(re.fullmatch(r"  exit x3-conv at cut point 3: \d+\.\d\d%", line) for line in lines)
    assert "not signed" in lines[-1]


@pytest.mark.slow
def test_a_device_knows_folders_by_the_further_names_of_classes(pathweave, command_line, tmp_path):
    (tmp_path / "names.txt").write_text("".join(f"number {digit}\tn{digit}\n" for digit in range(10)))
    _images(tmp_path / "pictures", "n3", "Number_7")
    data = ("--data", tmp_path / "pictures", "--val", tmp_path / "pictures", "--classes", tmp_path / "names.txt")
    shape = ("--exits", 0, "--max-span", 1, "--crop", "0.75", "--interpolation", "bicubic")
    assert pathweave("package", *ZOO, *data, *LENGTH, *shape, "--out", "named").status == 0
    manifest = Bundle.open(command_line.folder / "named").manifest
    assert (manifest.preprocessing.crop, manifest.preprocessing.interpolation) == (0.75, "bicubic")
    with AdaptiveModel.open(command_line.folder / "named", state_folder=tmp_path / "state") as model:
        found = load_data(model, str(tmp_path / "pictures"), limit=None, as_json=True)
    assert found.labels.tolist() == [7, 3]


def test_inspect_describes_blocks_cut_points_and_sizes(packaged, pathweave):
    described = pathweave("inspect", "reference", "--json").result
    manifest = Bundle.open(packaged).manifest
    assert described["name"] == "small"
    assert described["architecture_count"] == described["subnet_count"] == architectures(packaged)
    assert [block["id"] for block in described["blocks"]] == [block.id for block in manifest.blocks]
    shapes = [cut["shapes"] for cut in described["cut_points"]]
    assert shapes == [[[1, 8, 8]], *[[[8, 8, 8]]] * 3, *[[[16, 4, 4]]] * 2, [[10]]]
    assert [cut["bytes"] for cut in described["cut_points"]] == [256, *[2048] * 3, *[1024] * 2, 40]
    blobs = {path.name: path.stat().st_size for path in (packaged / "blobs").iterdir()}
    assert described["sizes"]["blobs"] == len(blobs)
    assert described["sizes"]["blob_bytes"] == sum(blobs.values())
    assert described["signed"] is False
    for block in described["blocks"]:
        assert (block["distillation_error"] is None) == (block["kind"] == "original")


def test_inspect_describes_exits(packaged, pathweave):
    described = pathweave("inspect", "reference", "--json").result["exits"]
    exits = Bundle.open(packaged).manifest.exits
    assert len(exits) == 6
    for found, exit_ in zip(described, exits, strict=True):
        assert found == {key: getattr(exit_, key) for key in EXIT_KEYS} | {
            "renditions": {"fp32": exit_.renditions[0].size_bytes}
        }


def test_inspect_shows_a_person_tables(packaged, pathweave):
    shown = pathweave("inspect", "reference").out
    count = architectures(packaged)
    assert int(count) > 1
    assert f"{count} architectures, {count} subnets" in shown
    assert all(name in shown for name in ("o0", "m1-3", "merged", "parameters"))
    (row,) = [line for line in shown.splitlines() if "x3-conv" in line]
    exit_ = Bundle.open(packaged).supernet.exit("x3-conv")
    shown_values = ("conv", "3", f"{exit_.parameters:,}", f"{exit_.macs:,}", f"{exit_.accuracy:.2%}")
    assert all(value in row for value in shown_values)
    brief = pathweave("inspect", "reference", "--brief").out
    assert "o0" not in brief
    assert "x3" not in brief


def test_inspect_of_a_bundle_without_exits_shows_no_table_of_them(pathweave, package_arguments):
    pathweave(*package_arguments, "--exits", 0, "--max-span", 1, "--out", "no_exits")
    assert "accuracy" not in pathweave("inspect", "no_exits").out
    assert pathweave("inspect", "no_exits", "--json").result["exits"] == []


def test_inspect_refuses_a_bundle_with_an_altered_blob(packaged, pathweave, tmp_path):
    shutil.copytree(packaged, tmp_path / "altered")
    blob = next((tmp_path / "altered" / "blobs").iterdir())
    blob.write_bytes(bytes([blob.read_bytes()[0] ^ 1]) + blob.read_bytes()[1:])
    refused = pathweave("inspect", tmp_path / "altered", "--json")
    assert (refused.status, refused.result["error"]["type"]) == (1, "BlobError")


# key


def test_a_new_key_pair_is_readable_by_its_owner_alone(pathweave, tmp_path):
    assert pathweave("sign", "key", "new", tmp_path / "k").status == 0
    assert stat.S_IMODE((tmp_path / "k.key").stat().st_mode) == 0o600
    assert (tmp_path / "k.pub").read_text().startswith("-----BEGIN PUBLIC KEY-----")


@pytest.mark.parametrize("there", ["k.key", "k.pub"])
def test_keys_are_never_overwritten(pathweave, tmp_path, there):
    (tmp_path / there).write_text("mine")
    refused = pathweave("sign", "key", "new", tmp_path / "k", "--json")
    assert (refused.status, refused.result["error"]["type"]) == (1, "StorageError")
    assert (tmp_path / there).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [there]


# What cannot be packaged


@pytest.fixture
def assert_refused(pathweave, command_line) -> Callable[..., None]:
    """Packaging ends with one ``error:`` line, the same as JSON, and leaves nothing behind."""

    def check(*arguments: object, status: int, error: str, words: tuple[str, ...]) -> None:
        before = sorted(command_line.folder.rglob("*"))
        refused = pathweave("package", *arguments, "--out", "never", "--threads", "1", "--json")
        assert refused.status == status
        lines = [line for line in refused.err.splitlines() if not line.startswith("note: ")]
        assert lines[0].startswith("error: ")
        assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: "))
        told = refused.result["error"]
        assert told["type"] == error
        assert lines[0] == f"error: {told['message']}"
        for word in words:
            assert word in told["message"]
        after = [path for path in sorted(command_line.folder.rglob("*")) if "__pycache__" not in path.parts]
        assert after == [path for path in before if "__pycache__" not in path.parts]

    return check


def test_a_length_of_training_has_to_be_given(assert_refused):
    assert_refused(*ZOO, *DIGITS, status=2, error="UsageError", words=("length of the training",))


def test_an_unknown_model_is_refused(assert_refused):
    model = ("--model", "zoo:resnet_digit")
    assert_refused(*model, *DIGITS, *LENGTH, status=1, error="ModelLoadError", words=("'resnet_digit'",))


@pytest.mark.parametrize("shape", ["8x8", "1x8xa", "0x8x8"])
def test_a_wrong_input_shape_is_wrong_usage(assert_refused, shape):
    arguments = (*ZOO, "--input-shape", shape, *DIGITS, *LENGTH)
    assert_refused(*arguments, status=2, error="UsageError", words=("channels x height x width",))


def test_a_wrong_name_is_wrong_usage(assert_refused):
    assert_refused(*ZOO, *DIGITS, *LENGTH, "--name", "a b", status=2, error="UsageError", words=("'a b'",))


def test_missing_weights_are_named(assert_refused, tmp_path):
    path = tmp_path / "nowhere.safetensors"
    arguments = (*ZOO, "--weights", path, *DIGITS, *LENGTH)
    assert_refused(*arguments, status=1, error="WeightsError", words=("no weights file", str(path)))


def test_truncated_weights_are_refused(assert_refused, tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(load_model("zoo:resnet_digits").module.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-1000])
    arguments = (*ZOO, "--weights", path, *DIGITS, *LENGTH)
    assert_refused(*arguments, status=1, error="WeightsError", words=("cannot be read", str(path)))


def test_weights_with_wrong_keys_name_the_first_three(assert_refused, tmp_path):
    path = tmp_path / "w.safetensors"
    state = load_model("zoo:resnet_digits").module.state_dict()
    save_file({f"{name}.other": value for name, value in state.items()}, path)
    words = ("keys are missing (conv1.weight, bn1.weight, bn1.bias, …)", "keys are unexpected (")
    assert_refused(*ZOO, "--weights", path, *DIGITS, *LENGTH, status=1, error="WeightsError", words=words)


def test_a_model_that_cannot_be_traced_is_refused_with_the_place(assert_refused):
    words = ("cannot be traced", "users_models.py", "in forward")
    model = ("--model", "users_models:branching")
    assert_refused(*model, *DIGITS, *LENGTH, status=1, error="TraceError", words=words)


def test_a_model_without_cut_points_is_refused(assert_refused):
    model = ("--model", "users_models:one_layer")
    assert_refused(*model, *DIGITS, *LENGTH, status=1, error="TraceError", words=("no cut point",))


def test_a_model_with_another_number_of_answers_than_classes_is_refused(assert_refused):
    model = ("--model", "users_models:five_answers")
    words = ("5 outputs", "10 classes")
    assert_refused(*model, *DIGITS, *LENGTH, status=1, error="DataError", words=words)


def _images(folder: Path, *classes: str) -> Path:
    for name in classes:
        (folder / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), 9, dtype=np.uint8)).save(folder / name / "0.png")
    return folder


def _missing(folder: Path) -> str:
    return str(folder / "nowhere")


def _empty(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def _one_class(folder: Path) -> str:
    return str(_images(folder / "one", "3"))


def _corrupt(folder: Path) -> str:
    _images(folder / "corrupt", "3", "7")
    (folder / "corrupt" / "7" / "0.png").write_bytes(b"\x89PNG broken")
    return str(folder / "corrupt")


def _unknown_part(folder: Path) -> str:
    return f"{_images(folder / 'two', '3', '7')}#training"


def _unknown_class(folder: Path) -> str:
    return str(_images(folder / "animals", "cat", "dog"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_missing, ("there is no data at", "nowhere")),
        (_empty, ("holds no images",)),
        (_one_class, ("holds only one class, 3",)),
        (_corrupt, ("7/0.png", "is not a readable image")),
        (_unknown_part, ("no part 'training'",)),
        (_unknown_class, ("classes that the model does not know: cat, dog",)),
    ],
)
@pytest.mark.parametrize("option", ["--data", "--val"])
def test_unusable_data_are_refused(assert_refused, tmp_path, make, words, option):
    other = {"--data": "--val", "--val": "--data"}[option]
    arguments = (*ZOO, option, make(tmp_path), other, "digits#search", *LENGTH)
    assert_refused(*arguments, status=1, error="DataError", words=words)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--preprocessing", "imagenett", ("imagenet, inception, unit",)),
        ("--preprocessing", "0.5/0", ("above zero",)),
        ("--crop", "0", ("a share above 0",)),
        ("--crop", "half", ("give whole",)),
        ("--interpolation", "nearest", ("bilinear", "bicubic")),
    ],
)
def test_wrong_preprocessing_is_wrong_usage(assert_refused, option, value, words):
    arguments = (*ZOO, *DIGITS, *LENGTH, option, value)
    assert_refused(*arguments, status=2, error="UsageError", words=words)


def test_a_missing_list_of_classes_is_named(assert_refused):
    arguments = (*ZOO, *DIGITS, *LENGTH, "--classes", "nowhere.txt")
    assert_refused(*arguments, status=1, error="DataError", words=("classes cannot be read", "nowhere.txt"))


def test_a_model_that_does_not_say_how_it_wants_its_pixels_is_refused(assert_refused):
    model = ("--model", "users_models:silent", "--input-shape", "1x8x8")
    assert_refused(*model, *DIGITS, *LENGTH, status=1, error="ModelLoadError", words=("the preprocessing of",))


def test_validation_without_labels_is_refused(assert_refused, tmp_path):
    _images(tmp_path / "flat", "3")
    arguments = (*ZOO, "--data", "digits#train", "--val", tmp_path / "flat" / "3", *LENGTH)
    assert_refused(*arguments, status=1, error="DataError", words=("have no labels",))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (None, ("cannot read the recipe",)),
        ("steps =", ("is not valid TOML",)),
        ("steps = 1\nspeed = 2", ("unknown field `speed`",)),
        ("gamma = 0.1", ("neither steps nor budget_minutes",)),
    ],
)
def test_a_wrong_recipe_is_wrong_usage(assert_refused, tmp_path, recipe, words):
    if recipe is not None:
        (tmp_path / "r.toml").write_text(recipe)
    arguments = (*ZOO, *DIGITS, "--recipe", tmp_path / "r.toml")
    assert_refused(*arguments, status=2, error="UsageError", words=words)


def test_without_torch_the_extra_is_named(command_line, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    arguments = ("package", *ZOO, *DIGITS, *LENGTH, "--out", "never", "--json")
    done = command_line.run(*arguments, python_path=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: this needs torch, which is not installed",
        "hint: pip install 'pathweave[packager]'",
    ]
    told = json.loads(done.stdout)["error"]
    assert (told["type"], told["hint"]) == ("MissingExtraError", "pip install 'pathweave[packager]'")
    assert not list(command_line.folder.glob("never*"))


# Minutes and memory


def test_a_dry_run_says_what_it_would_take_and_leaves_nothing(command_line, pathweave, package_arguments):
    done = pathweave(*package_arguments, "--out", "dry", "--rendition", "int8", "--memory-gb", "3", "--dry-run")
    assert done.status == 0, done.err
    said = done.result
    assert said["least_minutes"] > 0
    assert 0 < said["minutes"] < 10
    assert {"train", "export", "verify", "int8", "validate", "write"} <= said["seconds"].keys()
    assert 0 < said["least_memory_gb"] <= said["peak_gb"]
    assert said["memory_limit_gb"] == 3
    assert said["bundle_mb"] > 0
    assert not list(command_line.folder.glob("dry*"))


def test_a_person_reads_the_estimate_too(pathweave, package_arguments):
    done = pathweave(*[a for a in package_arguments if a != "--json"], "--out", "dry", "--dry-run")
    assert re.search(r"^about \d+\.\d minutes, at least \d+\.\d", done.out)
    assert "--memory-gb" in done.out


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (("--recipe", "short.toml"), ("minutes are too few", "at least")),
        (("--memory-gb", "0.1"), ("GB of memory are too few", "at least")),
        (("--memory-gb", "-2"), ("is not a limit for memory",)),
    ],
)
def test_limits_below_the_least_are_refused_before_the_work(command_line, pathweave, package_arguments, choices, words):
    (command_line.folder / "short.toml").write_text("budget_minutes = 0.001\n")
    done = pathweave(*package_arguments, *choices, "--out", "refused")
    assert done.status == 2
    assert all(word in done.err for word in words)
    assert not list(command_line.folder.glob("refused*"))
