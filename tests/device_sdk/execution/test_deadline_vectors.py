from __future__ import annotations

import json
from pathlib import Path

from device_sdk.execution.stepped_plan import last_in_time
from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
CASES = json.loads((CONTRACT / "deadlines.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("deadlines", tmp_path)
    assert not found, "python tests/contract/write_deadlines.py"


def test_the_choices_follow_from_the_times():
    for case in CASES:
        for choice in case["choices"]:
            assert choice["last"] == last_in_time(case["answer_times_ms"], choice["deadline_ms"])


def test_the_vectors_hold_refusals_and_every_step():
    chosen = {choice["last"] for case in CASES for choice in case["choices"]}
    assert chosen == {None, 0, 1, 2, 3}
