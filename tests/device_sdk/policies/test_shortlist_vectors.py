from __future__ import annotations

import json
from pathlib import Path

from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
CASES = json.loads((CONTRACT / "shortlists.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("shortlists", tmp_path)
    assert not found, "python tests/contract/write_shortlists.py"


def test_the_full_model_is_first_and_nothing_that_is_far_too_slow() -> None:
    cut = False
    for case in CASES["shortlist"]:
        latency_ms = {subnet: found_ms for subnet, found_ms, *_ in case["pool"]}
        original, *others = case["shortlist"]
        assert original not in others
        assert len(others) <= 12
        allowed = [case["latency_ms"] is None or latency_ms[one] <= 3 * case["latency_ms"] for one in others]
        assert all(allowed)
        cut = cut or len(others) < len(latency_ms) - 1
    assert cut


def test_every_cut_point_of_the_full_model_has_an_exit_in_time_order() -> None:
    for case in CASES["further_exits"]:
        names = [one["exit"] for one in case["further"]]
        assert {one["exit"] for one in case["exits"]} <= set(names)
        assert len(names) == len(CASES["further_exits"][0]["further"])
