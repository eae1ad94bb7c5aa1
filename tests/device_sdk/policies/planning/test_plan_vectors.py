"""Plans that Python and Kotlin choose alike: tests/contract/plans.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[3] / "contract"
CASES = json.loads((CONTRACT / "plans.json").read_text())["cases"]
BEST = [(case, one) for case in CASES for wanted in case["requirements"] for one in wanted["best"]]


@pytest.mark.slow
def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("plans", tmp_path, relative=1e-7)
    assert not found, "python tests/contract/write_plans.py"


def test_plans_of_every_kind_are_among_them():
    hard = [one["plan"]["hard"] for _, one in BEST]
    kinds = {(one["kind"], one["decider"]["kind"]) for one in hard if one["kind"] != "answer"}
    assert {("ask", "logistic"), ("ask", "max_confidence"), ("abstain", "max_confidence")} <= kinds
    assert any(one["plan"]["split"] for _, one in BEST)
    early = [one for _, one in BEST if one["cost"]["share_asked_early"]]
    assert len(early) >= 3
    for one in early:
        assert one["saved"]
        assert any(exit_["ask_below"] for exit_ in one["plan"]["exits"])


def test_without_a_server_in_reach_nothing_is_asked_where_latency_counts():
    for case, one in BEST:
        if one["uplink"] is None and one["cost"]["latency_ms"] is not None:
            assert one["cost"]["share_asked"] == 0
        assert one["considered"] > len(case["subnets"])


def test_fronts_have_no_plan_twice_and_judge_every_sample():
    for case in CASES:
        for front in (wanted["front"] for wanted in case["requirements"] if wanted["front"]):
            plans = [json.dumps(offer["plan"]) for offer in front["offers"]]
            assert plans
            assert len(set(plans)) == len(plans)
            counts = {sum(way["samples"] for way in offer["ways"]) for offer in front["offers"]}
            assert counts == {case["count"]}
