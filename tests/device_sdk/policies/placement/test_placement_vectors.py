from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_sdk.policies.placement import ExitCandidate, StopTimes, expectation
from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[3] / "contract"
CASES = json.loads((CONTRACT / "placements.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("placements", tmp_path)
    assert not found, "python tests/contract/write_placements.py"


@pytest.mark.parametrize("strategy", ["exact", "greedy"])
def test_the_placements_are_worth_what_the_vectors_say(strategy):
    for case in CASES:
        found, stop_times = case[strategy], StopTimes(tuple(case["until"]), tuple(case["weight"]))
        kept = [ExitCandidate(**one) for one in case["candidates"] if one["exit"] in found["exits"]]
        assert expectation(kept, full_time=case["full_time"], stop_times=stop_times) == found["expectation"]
        assert sum(one.memory_bytes for one in kept) == found["memory_bytes"]


def test_the_vectors_hold_cases_where_greedy_is_not_the_best() -> None:
    better = [case["exact"]["expectation"] > case["greedy"]["expectation"] for case in CASES]
    assert any(better)
    assert not all(better)
