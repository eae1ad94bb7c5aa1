from __future__ import annotations

import json
from pathlib import Path

from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "offload.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("offload", tmp_path)
    assert not found, "python tests/contract/write_offload.py"


def test_the_vectors_hold_replies_that_are_read_and_refused():
    read = [case["read"] is not None for case in VECTORS["responses"]]
    assert read.count(True) > 20
    assert read.count(False) > 40


def test_the_vectors_hold_breakers_in_every_state_and_links_in_and_out_of_reach():
    states = {step[3] for case in VECTORS["breakers"] for step in case["steps"]}
    assert states == {"closed", "open", "half-open"}
    uplinks = [step["uplink"] is None for case in VECTORS["links"] for step in case["steps"]]
    assert uplinks.count(True) > 5
    assert uplinks.count(False) > 300


def test_on_other_networks_other_plans_are_the_best():
    changing = [len({one["offer"] for one in case["best"]}) > 1 for case in VECTORS["fronts"]]
    assert changing.count(True) > 5
    assert any(one["misses"] for case in VECTORS["fronts"] for one in case["best"])
