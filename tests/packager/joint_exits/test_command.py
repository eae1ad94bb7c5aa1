"""``pathweave package --joint-exits``: what it prints, and one clear line for what does not go with it."""

from __future__ import annotations

import json

import pytest

from device_sdk.bundles.bundle import Bundle
from pathweave.cli import main

MODEL = ("--model", "zoo:resnet_digits", "--data", "digits#train", "--val", "digits#search", "--joint-exits", "1")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs ``pathweave package`` in an empty folder; returns status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def package(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["package", *MODEL, "--max-span", "1", "--exits", "0", *arguments])
        return (status, *capsys.readouterr())

    return package


def test_model_and_copy_are_packaged_and_described(run, tmp_path):
    status, out, _ = run("--steps", "2", "--out", "bundle", "--save-branches", "learned.safetensors", "--json")
    assert status == 0
    said = json.loads(out)
    assert [one["name"] for one in said["members"]] == ["resnet_digits", "resnet_digits-early"]
    assert len(said["exits"]) == 1
    assert any("2 steps of joint training" in note for note in said["notes"])
    assert len(Bundle.open(tmp_path / "bundle").supernet.members_with_exits) == 1
    assert [one.name for one in tmp_path.glob("learned*")] == ["learned.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "2", "--dry-run", "--out", "bundle"), "is not estimated"),
        (("--steps", "0", "--out", "bundle"), "need steps, minutes or branch_weights"),
        (("--steps", "2", "--bottlenecks", "1", "--out", "bundle"), "do not go together"),
    ],
)
def test_what_does_not_go_with_it_is_said_in_one_line(run, tmp_path, arguments, message):
    status, _, err = run(*arguments)
    assert status == 2
    assert message in err
    assert not (tmp_path / "bundle").exists()
