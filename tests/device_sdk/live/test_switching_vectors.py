from __future__ import annotations

import json
from pathlib import Path

from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "switching.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("switching", tmp_path)
    assert not found, "python tests/contract/write_switching.py"


def test_the_vectors_hold_switches_both_ways_and_none():
    decisions = [case["decision"] for case in VECTORS["switches"]]
    found = {(one["why"], one["fits"], one["target"] is not None) for one in decisions if one is not None}
    assert None in decisions
    assert {("faster", True, True), ("slower", True, True), ("slower", False, True), ("slower", True, False)} <= found


def test_the_vectors_hold_networks_that_call_for_a_plan_and_that_do_not():
    looks = [look["calls"] for case in VECTORS["drifts"] for look in case["looks"]]
    assert looks.count(True) > 20
    assert looks.count(False) > 20


def test_the_vectors_hold_every_cause_that_the_processor_can_have():
    causes = {"throttled", "load", "power_mode", "unknown"}
    assert {case["cause"] for case in VECTORS["causes"]} == causes
    assert {case["stated"] for case in VECTORS["causes"]} == causes - {"load"}
    assert {case["cause"] for case in VECTORS["caused"]} == causes


def test_the_vectors_hold_switches_up_that_wait_for_a_cause_that_lasts():
    throttled = [case for case in VECTORS["caused"] if case["last_cause"] == "throttled"]
    waiting = [case for case in throttled if -22 < case["last"][0] <= 8]  # at second 8; later ones: a clock set back
    assert waiting
    assert not [case for case in waiting if case["decision"] and case["decision"]["why"] == "faster"]
    found = [case for case in VECTORS["caused"] if case["decision"] and case["decision"]["why"] == "faster"]
    assert any(case["last_cause"] == "throttled" for case in found)
