from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.tasks import TASKS
from tests.contract.agreement import differences, differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "tasks.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    # Sides of boxes are small differences of shares of an image in float32.
    different = differences_from_frozen("tasks", tmp_path, relative=1e-5, absolute=1e-6)
    assert not different, "python tests/contract/write_tasks.py"
    again, frozen = tmp_path / "maps", CONTRACT / "maps"
    assert sorted(one.name for one in again.rglob("*")) == sorted(one.name for one in frozen.rglob("*"))
    one, other = (json.loads((folder / "manifest.json").read_text()) for folder in (frozen, again))
    assert not list(differences(one, other, relative=1e-6, absolute=1e-7))


def test_the_segmenter_passes_its_self_test_and_adapts(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (40, 2, 2, 3), dtype=np.uint8)
    with AdaptiveModel.open(CONTRACT / "maps", state_folder=tmp_path) as model:
        found = model.adapt(images, Goal(latency_ratio=3.0), take=False)
    assert found.full_accuracy == 1.0
    assert min(one.accuracy for one in found.pool) < 0.9


def test_every_task_is_there_with_good_and_bad_answers():
    assert {case["kind"] for case in VECTORS["cases"]} == set(TASKS)
    for case in VECTORS["cases"]:
        assert min(case["scores"]) < max(case["scores"])
