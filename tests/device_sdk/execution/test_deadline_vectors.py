from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from device_sdk.execution.deadline import last_in_time

CONTRACT = Path(__file__).parents[2] / "contract"
CASES = json.loads((CONTRACT / "deadlines.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    written = tmp_path / "deadlines.json"
    subprocess.run([sys.executable, CONTRACT / "write_deadlines.py", written], check=True, timeout=60)
    assert written.read_text() == (CONTRACT / "deadlines.json").read_text(), "python tests/contract/write_deadlines.py"


def test_the_choices_follow_from_the_times():
    for case in CASES:
        for choice in case["choices"]:
            assert choice["last"] == last_in_time(case["answer_times_ms"], choice["deadline_ms"])


def test_the_vectors_hold_refusals_and_every_step():
    chosen = {choice["last"] for case in CASES for choice in case["choices"]}
    assert chosen == {None, 0, 1, 2, 3}
