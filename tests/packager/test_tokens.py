"""A model of names in texts from its folder to a plan on the device: packaged, adapted, judged, run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import pathweave
from device_sdk.bundles.bundle import Bundle
from pathweave import Goal
from pathweave.cli import main
from tests.packager.small_tags import TAGS, TOKENS, write_folder, write_tags

pytest.importorskip("tokenizers", reason="the extra text is not installed")
pytest.importorskip("transformers", reason="needs the extra: pip install 'pathweave[huggingface]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A packaged model of names, ``bundle``, and the data that it was packaged with."""
    found = tmp_path_factory.mktemp("names")
    for number, name in enumerate(("training", "validation", "private")):
        write_tags(found / f"{name}.conll", 200, seed=20 + number)
    write_folder(found / "model", write_tags(found / "known.conll", 400, seed=1))
    arguments = ["package", "--task", "token_classification", "--model", f"hf:{found / 'model'}", "--json"]
    arguments += ["--data", str(found / "training.conll"), "--val", str(found / "validation.conll")]
    arguments += ["--steps", "0", "--rendition", "int8", "--out", str(found / "bundle")]
    assert main(arguments) == 0
    return found


def test_a_bundle_answers_for_each_token_at_each_length(folder):
    bundle = Bundle.open(folder / "bundle")
    assert (bundle.manifest.task.kind, bundle.manifest.task.class_names) == ("token_classification", TAGS)
    assert bundle.manifest.cut_points[-1].tensors[-1].shape == (len(TAGS), TOKENS)
    assert [one.shapes[-1][-1] for one in bundle.manifest.input_sizes] == [(len(TAGS), 16)]
    assert {block.kind for block in bundle.supernet.blocks} >= {"merged", "shrunk", "identity"}
    assert bundle.manifest.metrics.original_accuracy > 0.6


@pytest.mark.parametrize("labelled", [True, False])
def test_a_model_of_names_adapts_by_targets_and_by_its_own_answers(folder, labelled, tmp_path):
    with pathweave.AdaptiveModel.open(folder / "bundle", state_folder=tmp_path) as model:
        texts = [text for text in (folder / "private.conll").read_text().split("\n\n") if "DOCSTART" not in text]
        words = [" ".join(line.split()[0] for line in text.splitlines()) for text in texts[:60]]
        targets = None
        if labelled:
            targets = np.full((60, TOKENS), -1)
            for row, text in zip(targets, texts, strict=False):
                classes = [TAGS.index(line.split()[-1]) for line in text.splitlines()][: TOKENS - 2]
                row[1 : 1 + len(classes)] = classes
        found = model.adapt(words, Goal(latency_ratio=3.0), labels=targets)
        assert found.expected.accuracy > (0.75 if labelled else 0.9)
        assert model(words[:3]).output.shape[:2] == (3, len(TAGS))


def test_the_command_line_adapts_to_tagged_texts_and_names_what_it_finds(folder, tmp_path, capsys):
    bundle, state = str(folder / "bundle"), ["--state", str(tmp_path / "state"), "--json"]
    for more in ([], ["--unlabelled"]):
        arguments = ["adapt", bundle, "--data", str(folder / "private.conll"), "--latency-ratio", "3", *more, *state]
        assert main([*arguments, "--limit", "60"]) == 0
    capsys.readouterr()
    assert main(["run", bundle, "--data", str(folder / "validation.conll"), *state]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert (judged["score_name"], judged["samples"]) == ("span F1", 200)
    assert judged["score"] > 0.55
    (tmp_path / "text.txt").write_text("with the old bread cheese and the moon near some star")
    assert main(["run", bundle, str(tmp_path / "text.txt"), *state]) == 0
    [answer] = json.loads(capsys.readouterr().out)["answers"]
    assert [(one["label"], one["text"]) for one in answer["found"]] == [
        ("food", "bread cheese"),
        ("sky", "moon"),
        ("sky", "star"),
    ]
    assert answer["found"][1] == {"label": "sky", "text": "moon", "start": 34, "end": 38}
    assert main(["run", bundle, str(tmp_path / "text.txt"), *state[:-1]]) == 0
    assert "food bread cheese, sky moon, sky star" in capsys.readouterr().out


def test_it_can_be_checked_before_it_is_packaged(folder, capsys):
    arguments = ["package", "--check", "--model", f"hf:{folder / 'model'}", "--json"]
    said = {}
    for name, more in {"as a classifier": [], "of words": ["--task", "token_classification"]}.items():
        assert main([*arguments, *more]) == 0
        verdicts = json.loads(capsys.readouterr().out)["verdicts"]
        said[name] = {one["capability"]: (one["possible"], one["says"]) for one in verdicts}
    assert "token_classification" in said["as a classifier"]["classify"][1]
    assert "classify" not in said["of words"]
    assert said["of words"]["exit"] == (False, "the model is not a classifier")
    assert said["of words"]["run smaller"][1].startswith("16; ")
    arguments += ["--task", "token_classification", "--data", str(folder / "training.conll")]
    assert main(arguments) == 0
    [size] = json.loads(capsys.readouterr().out)["input_sizes"]
    assert size["size"] == [16]
    assert 0 < size["error"] < 1
