"""``pathweave package --member``: what it prints, and one clear line for what cannot be a family."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from pathweave.cli import main

DATA = ("--data", "digits#train", "--val", "digits#search", "--steps", "0", "--max-span", "1", "--exits", "0")
MEMBERS = ("--model", "users_family:large", "--member", "users_family:small")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs ``pathweave package`` in a folder with the user's networks; returns status, output and errors."""
    shutil.copy(Path(__file__).parent / "networks.py", tmp_path / "users_family.py")
    monkeypatch.chdir(tmp_path)

    def package(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["package", *map(str, arguments)])
        return (status, *capsys.readouterr())

    return package


def test_a_family_is_packaged_and_described(run, tmp_path):
    status, out, _ = run(*MEMBERS, *DATA, "--out", "family", "--rendition", "int8", "--json")
    assert status == 0
    said = json.loads(out)
    assert [one["name"] for one in said["members"]] == ["large", "small"]
    assert said["members"][0]["macs"] > said["members"][1]["macs"]
    assert said["ladder_bytes"] == sum(one["bytes"] for one in said["members"])
    assert said["bundle_bytes"] >= said["ladder_bytes"]
    bundle = Bundle.open(tmp_path / "family")
    assert len(bundle.supernet.originals) == 2
    assert said["blocks"] == len(bundle.supernet.blocks)
    assert not (tmp_path / "family.work").exists()


def test_a_person_reads_a_line_for_each_member(run, tmp_path):
    status, out, _ = run(*MEMBERS, *DATA, "--out", "family", "--name", "two")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith("family: 2 members, ")
    assert lines[1].startswith("  large: ")
    assert lines[2].startswith("  small: ")
    assert Bundle.open(tmp_path / "family").manifest.name == "two"
    assert main(["inspect", str(tmp_path / "family")]) == 0


def test_check_says_which_cut_points_can_be_joined_and_writes_nothing(run, tmp_path):
    before = set(tmp_path.iterdir())
    status, out, _ = run(*MEMBERS, "--check", "--json")
    assert status == 0
    said = json.loads(out)
    assert [one["name"] for one in said["members"]] == ["large", "small"]
    assert {(one["start"], one["end"]) for one in said["joints"]} == {("large", "small"), ("small", "large")}
    assert all(one["count"] and one["path_macs"][0] < said["members"][0]["macs"] for one in said["joints"])
    status, out, _ = run(*MEMBERS, "--check")
    assert "small, then large: " in out
    assert {one.name for one in tmp_path.iterdir()} - {one.name for one in before} <= {"__pycache__"}


def test_the_picture_of_a_family_is_drawn_by_inspect(run, tmp_path, capsys):
    assert run(*MEMBERS, *DATA, "--out", "family")[0] == 0
    assert main(["inspect", str(tmp_path / "family"), "--brief", "--picture", str(tmp_path / "front.svg")]) == 0
    drawing = (tmp_path / "front.svg").read_text()
    assert ">large</text>" in drawing
    assert ">small</text>" in drawing
    (tmp_path / "family" / "packaging.json").unlink()
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "family"), "--picture", str(tmp_path / "other.svg")]) != 0
    assert "nothing to draw" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "users_family:large", "--member", "users_family:large"), "has the same weights as"),
        ((*MEMBERS, "--dry-run"), "--dry-run does not go with --member"),
        (("--model", "users_family:large", "--member", "users_family:small=none.pth"), "no weights file none.pth"),
        (("--model", "users_family:large", "--member", "users_family:none"), "has no callable 'none'"),
    ],
)
def test_what_cannot_be_a_family_is_one_line(run, tmp_path, arguments, said):
    status, _, errors = run(*arguments, *DATA, "--out", "family")
    assert status != 0
    assert said in errors
    assert not (tmp_path / "family").exists()


def test_the_length_of_the_training_is_required(run):
    status, _, errors = run(*MEMBERS, "--data", "digits#train", "--val", "digits#search", "--out", "family")
    assert status == 2
    assert "the length of the training is missing" in errors
