from __future__ import annotations

import json
from pathlib import Path

from device_sdk.tasks import TASKS
from tests.contract.agreement import differences_from_frozen

VECTORS = json.loads((Path(__file__).parents[2] / "contract" / "tasks.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    # Sides of boxes are small differences of shares of an image in float32.
    different = differences_from_frozen("tasks", tmp_path, relative=1e-5, absolute=1e-6)
    assert not different, "python tests/contract/write_tasks.py"


def test_every_task_is_there_with_good_and_bad_answers():
    assert {case["kind"] for case in VECTORS["cases"]} == set(TASKS)
    for case in VECTORS["cases"]:
        assert min(case["scores"]) < max(case["scores"])
