"""The door for folders of Hugging Face, measured: a row for an architecture that passes, and for one that fails."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="needs the extra: pip install 'pathweave[huggingface]'")

from benchmarks.doors.huggingface import ARCHITECTURES, QUICK, check, huggingface_rows, huggingface_share


def test_a_vision_transformer_goes_through_the_door() -> None:
    row = check("vit")
    assert row["passed"]
    assert row["difference"] == 0.0
    assert int(str(row["subnets"])) > 10


def test_an_unknown_architecture_is_a_failure_with_its_reason() -> None:
    [row] = huggingface_rows(["no such network"])
    assert "no such network" in str(row["failure"])
    assert huggingface_share([row, {"passed": True}]) == 0.5


def test_ten_architectures_or_more_and_five_tasks_are_tried() -> None:
    assert len(ARCHITECTURES) >= 10
    named = {name.rpartition(" for ")[2] for name in ARCHITECTURES if " for " in name}
    assert named == {"pixels", "texts", "tokens", "sounds", "boxes"}  # the others are classifiers of images
    assert set(QUICK) <= set(ARCHITECTURES)
