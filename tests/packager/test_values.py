"""Several labels, numbers and vectors for each sample, on the command line: packaged, adapted, judged, run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from pathweave.cli import main
from tests.packager import small_values
from tests.packager.small_values import LABELS, write_labels, write_numbers

CASES = {
    "multilabel": ("labelling", write_labels, LABELS, "F1"),
    "regression": ("measuring", write_numbers, ("value 1", "value 2"), "1 − sMAPE"),
    "embedding": ("describing", write_numbers, (), ""),
}


@pytest.fixture(scope="module", params=CASES)
def packaged(request, tmp_path_factory):
    """A kind of task, and a folder with its bundle and data."""
    folder = tmp_path_factory.mktemp(request.param)
    model, write, *_ = CASES[request.param]
    for seed, name in enumerate(("training", "validation", "private")):
        write(folder / f"{name}.npz", 160, seed + 10)
    arguments = ["package", "--task", request.param, "--model", f"tests.packager.small_values:{model}", "--json"]
    arguments += ["--data", str(folder / "training.npz"), "--val", str(folder / "validation.npz"), "--card"]
    assert main([*arguments, "--steps", "0", "--rendition", "int8", "--out", str(folder / "bundle")]) == 0
    return request.param, folder


def test_classes_are_those_of_the_model_or_of_the_data(packaged):
    kind, folder = packaged
    manifest = Bundle.open(folder / "bundle").manifest
    assert (manifest.task.kind, manifest.task.class_names) == (kind, CASES[kind][2])
    assert manifest.metrics.original_accuracy > 0.8
    assert (folder / "bundle" / "README.md").is_file()


def test_it_adapts_with_targets_and_without_and_is_judged(packaged, tmp_path, capsys):
    kind, folder = packaged
    state = ["--state", str(tmp_path), "--json"]
    for more in ([], ["--unlabelled"]):
        arguments = ["adapt", str(folder / "bundle"), "--data", str(folder / "private.npz"), "--latency-ratio", "3"]
        assert main([*arguments, *more, *state]) == 0
    capsys.readouterr()
    judged = main(["run", str(folder / "bundle"), "--data", str(folder / "validation.npz"), *state])
    said = json.loads(capsys.readouterr().out)
    if kind == "embedding":
        assert judged != 0
        assert "no targets to be judged by" in said["error"]["message"]
        return
    assert (judged, said["score_name"]) == (0, CASES[kind][3])
    assert said["score"] > 0.75


def test_a_file_is_answered_in_words_and_numbers(packaged, tmp_path, capsys):
    kind, folder = packaged
    line = 0.8 + 0.9 * np.linspace(-1, 1, 16, dtype=np.float32)
    np.save(tmp_path / "line.npy", np.stack([line, np.diff(line, prepend=line[:1])]))
    arguments = ["run", str(folder / "bundle"), str(tmp_path / "line.npy"), "--state", str(tmp_path / "state")]
    assert main([*arguments, "--json"]) == 0
    [answer] = json.loads(capsys.readouterr().out)["answers"]
    found = answer["found"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    if kind == "multilabel":
        assert [one["label"] for one in sorted(found, key=lambda one: one["label"])] == ["high", "steep"]
        assert ": high " in text or ", high " in text
    elif kind == "regression":
        assert [one["label"] for one in found] == ["value 1", "value 2"]
        np.testing.assert_allclose([one["value"] for one in found], [0.8, 0.9], atol=0.2)
        assert "value 1 0." in text
    else:
        assert len(found[0]["vector"]) == 4
        assert "a vector of 4 numbers" in text


@pytest.mark.parametrize(
    ("kind", "labels", "said"),
    [
        ("multilabel", ["high|round", "steep"], "the model has no label 'round'"),
        ("regression", ["0.5|high", "1|2"], "'high' is not a number"),
        ("regression", ["0.5", "1|2"], "the model answers with"),
        ("regression", ["nan|1", "1|2"], "'nan' is not a number"),
    ],
)
def test_targets_of_another_model_are_a_line(kind, labels, said, tmp_path, capsys):
    values, _ = small_values.drawn(2, 3)
    np.savez(tmp_path / "some.npz", x=values, y=np.array(labels))
    model = f"tests.packager.small_values:{CASES[kind][0]}"
    arguments = ["package", "--task", kind, "--model", model, "--steps", "0", "--out", str(tmp_path / "bundle")]
    assert main([*arguments, "--data", str(tmp_path / "some.npz"), "--val", str(tmp_path / "some.npz")]) != 0
    assert said in capsys.readouterr().err


def test_it_can_be_checked_before_it_is_packaged(packaged, capsys):
    kind, folder = packaged
    arguments = ["package", "--check", "--task", kind, "--model", f"tests.packager.small_values:{CASES[kind][0]}"]
    assert main([*arguments, "--data", str(folder / "training.npz"), "--json"]) == 0
    verdicts = {one["capability"]: one for one in json.loads(capsys.readouterr().out)["verdicts"]}
    assert verdicts["exit"]["says"] == "the model is not a classifier"
    assert "classify" not in verdicts


@pytest.mark.parametrize("kind", ["segmentation", "token_classification"])
def test_a_task_of_other_samples_is_a_line(kind, tmp_path, capsys):
    data = str(write_numbers(tmp_path / "some.npz", 4, 3))
    arguments = ["package", "--task", kind, "--model", "tests.packager.small_values:labelling", "--steps", "0"]
    arguments += ["--data", data, "--val", data, "--out", str(tmp_path / "bundle")]
    assert main(arguments) != 0
    assert "this model takes other samples" in capsys.readouterr().err
