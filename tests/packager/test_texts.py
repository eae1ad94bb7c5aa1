"""A text classifier from its module to a plan on the device: packaged, opened, called, adapted, run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import pathweave
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BlobError, InputError
from pathweave import Goal
from pathweave.cli import main
from tests.packager.small_texts import TOPICS, write_texts

pytest.importorskip("tokenizers", reason="the extra text is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A packaged text classifier, ``bundle``, and the data that it was packaged with."""
    found = tmp_path_factory.mktemp("texts")
    for number, name in enumerate(("training", "validation", "private")):
        write_texts(found / f"{name}.csv", 240, seed=10 + number)
    arguments = ["package", "--model", "tests.packager.small_texts:model", "--out", str(found / "bundle"), "--json"]
    arguments += ["--data", str(found / "training.csv"), "--val", str(found / "validation.csv")]
    arguments += ["--steps", "24", "--exits", "1", "--max-span", "2"]
    assert main(arguments) == 0
    return found


@pytest.fixture(scope="module")
def private(folder) -> list[dict[str, str]]:
    with (folder / "private.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_manifest_names_the_tokenizer_and_shorter_lengths(folder):
    bundle = Bundle.open(folder / "bundle")
    preprocessing = json.loads((folder / "bundle" / "manifest.json").read_bytes())["preprocessing"]
    assert preprocessing["kind"] == "text"
    assert bundle.read_blob(preprocessing["tokenizer"]).startswith(b"{")
    assert bundle.manifest.minor_version >= 9
    assert [one.size for one in bundle.manifest.input_sizes] == [(24,), (16,)]
    assert bundle.manifest.cut_points[0].tensors[0].dtype == "int64"
    assert bundle.manifest.exits


def test_shorter_lengths_cost_less(folder):
    supernet = Bundle.open(folder / "bundle").supernet
    whole, short = supernet.cut_points_at(())[1], supernet.cut_points_at((16,))[1]
    assert 2 * short.nbytes == whole.nbytes


def test_a_bundle_without_its_tokenizer_does_not_open(folder, tmp_path):
    name = json.loads((folder / "bundle" / "manifest.json").read_bytes())["preprocessing"]["tokenizer"]
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in (folder / "bundle" / "blobs").iterdir():
        if path.name != name:
            (blobs / path.name).symlink_to(path)
    with pytest.raises(BlobError, match=name[:12]):
        Bundle.open(folder / "bundle", blobs=blobs)


def test_texts_are_answered_alone_and_together(folder, tmp_path):
    with pathweave.open(folder / "bundle", state_folder=tmp_path) as model:
        assert model("some bread and salt with cheese").labels == ("food",)
        together = model(["the moon and a star near the sun", "the team with a ball"])
        assert together.labels == ("sky", "sport")
        prepared = model.prepare("the moon and a star near the sun")
        assert np.allclose(model.infer(prepared).output, together.output[:1], atol=1e-4)
        with pytest.raises(InputError, match="text 1 is empty"):
            model(["one", ""])


def test_adapting_chooses_blocks_and_a_length(folder, private, tmp_path):
    labels = [list(TOPICS).index(one["label"]) for one in private]
    texts = [one["text"] for one in private]
    with pathweave.open(folder / "bundle", state_folder=tmp_path) as model:
        full = np.mean(model(texts).output.argmax(1) == labels)
        found = model.adapt(texts, Goal(latency_ratio=0.9), labels=labels)
        assert found.plan.subnet.input_size in model.bundle.supernet.sizes
        assert str(found.plan.subnet) != str(model.bundle.supernet.original)
        adapted = np.mean(model(texts).output.argmax(1) == labels)
        assert adapted >= full - 0.1
        assert model("some bread and salt with cheese").labels == ("food",)


def test_the_commands_take_files_of_texts(folder, tmp_path, capsys):
    def ran(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        base = ("run", folder / "bundle", "--state", tmp_path / "state", "--json")
        return main([str(one) for one in (*base, *arguments)]), *capsys.readouterr()

    (tmp_path / "one.txt").write_text("the moon and a star near the sun")
    assert json.loads(ran(tmp_path / "one.txt")[1])["answers"][0]["label"] == "sky"
    (tmp_path / "long.csv").write_text(f"text,label\n{'moon ' * 60},sky\nquark ball,sport\n")
    _, measured, notes = ran("--data", tmp_path / "long.csv")
    assert json.loads(measured)["samples"] == 2
    assert "1 of 2 texts have more than the model's 32 tokens and are cut" in notes
    assert "1 of 36 tokens are unknown to the model" in notes
    status, _, error = ran("--data", tmp_path / "one.txt")
    assert status != 0
    assert "unknown suffix" in error
