"""What every language's search must propose and choose from the same evidence (tests/contract/searches.json)."""

from __future__ import annotations

import json
from pathlib import Path

from device_sdk.search import STRATEGIES
from tests.contract.agreement import differences_from_frozen

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "searches.json").read_text())


def test_the_vectors_are_those_that_the_script_writes(tmp_path):
    found = differences_from_frozen("searches", tmp_path)
    assert not found, "python tests/contract/write_searches.py"


def test_every_strategy_has_cases_with_each_limit_and_several_choices():
    cases = VECTORS["cases"]
    assert {case["strategy"] for case in cases} == STRATEGIES.keys()
    for limit in ("latency_ms", "memory_mb"):
        assert {case["budget"][limit] is None for case in cases} == {True, False}
    assert len({case["best"] for case in cases}) >= 10
