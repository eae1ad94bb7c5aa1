from __future__ import annotations

import json
from pathlib import Path

from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "elastic.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("elastic", tmp_path)
    assert not found, "python tests/contract/write_elastic.py"


def test_the_vectors_hold_pages_that_stay_that_leave_and_caps_that_are_refused():
    assert {case.get("all_stay") for case in VECTORS["pages"]} == {True, False, None}


def test_the_vectors_hold_whole_plans_shorter_ones_and_none():
    kept = [(case["kept"], case["exits"]) for case in VECTORS["plans"]]
    assert any(left is None for left, _ in kept)
    assert any(left == before for left, before in kept)
    assert any(left is not None and left != before for left, before in kept)


def test_the_vectors_hold_caps_that_sink_rise_and_are_lifted():
    pairs = [pair for case in VECTORS["caps"] for pair in zip(case["readings"], case["readings"][1:], strict=False)]
    steps = [(before["cap_bytes"], after["cap_bytes"]) for before, after in pairs]
    assert any(one is not None and other is not None and other < one for one, other in steps)
    assert any(one is not None and other is not None and other > one for one, other in steps)
    assert any(one is not None and other is None for one, other in steps)
