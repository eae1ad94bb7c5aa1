"""The examples of docs/extend run as they stand, each in a process of its own, since they add to registries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.signing import signatures
from tests.device_sdk.tiny_bundle import write_tiny_bundle

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "extend").glob("*.py"))


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> Path:
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("tiny")
    for name, data in zip(("key", "key.pub"), signatures.new_key_pair(), strict=True):
        (folder / name).write_bytes(data)
    write_tiny_bundle(folder / "bundle", folder / "key")
    return folder / "bundle"


def run(example: str, folder: Path) -> str:
    """What the example prints last."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "extend" / f"{example}.py", folder],
        env=os.environ | {"PYTHONPATH": str(ROOT), "CI": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_listed_and_stays_outside(path):
    text = path.read_text()
    assert len(text.splitlines()) < 100
    assert f"[{path.name}]({path.name})" in path.with_name("README.md").read_text()
    assert re.findall(r"(?<!self)\._[a-z]\w*|import _\w+|setattr\(", text) == []


def test_a_runtime_of_ones_own_passes_the_self_test(tiny_folder):
    pytest.importorskip("onnx.reference")
    assert run("runtime", tiny_folder).startswith("reference-numpy-1t passed the self-test and answers ")


def test_a_decider_of_ones_own_is_swept_and_judged(tiny_folder):
    last = run("decider", tiny_folder)
    assert '"kind":"logit_gap"' in last
    assert last.endswith("abstains on 10.0%")


def test_a_task_of_ones_own_is_scored_alike_on_the_device_and_while_learning(tiny_folder):
    pytest.importorskip("torch")
    assert run("task", tiny_folder).startswith("while learning: 100%, loss ")


def test_a_kind_of_block_of_ones_own_is_packaged_and_runs(tmp_path):
    pytest.importorskip("sklearn")
    assert run("block_kind", tmp_path).startswith("o0 p1-3 o3 ")


def test_an_exit_structure_of_ones_own_is_packaged_and_answers(tmp_path):
    pytest.importorskip("sklearn")
    assert run("exit_structure", tmp_path).startswith("answered by x2-largest: class ")
