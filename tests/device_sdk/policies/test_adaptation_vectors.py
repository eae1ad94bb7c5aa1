"""What every language must find on the reference bundle (tests/contract/adaptations.json)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[2] / "contract"
VECTORS = json.loads((CONTRACT / "adaptations.json").read_text())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "adaptations.json"
    subprocess.run([sys.executable, CONTRACT / "write_adaptations.py", path], check=True, timeout=240)
    return json.loads(path.read_text())


def test_the_script_writes_the_same_choices_and_to_rounding_the_same_numbers(written):
    for case, again in zip(VECTORS["cases"], written["cases"], strict=True):
        assert {**case, "pool": None} == {**again, "pool": None}, "python tests/contract/write_adaptations.py"
        assert list(case["pool"]) == list(again["pool"])
        for subnet, numbers in case["pool"].items():
            assert again["pool"][subnet] == pytest.approx(numbers, abs=1e-6)


def test_the_script_chooses_the_same_exits(written):
    numbers = ("exits", "accuracy", "share_early")
    for case, again in zip(VECTORS["exit_sets"], written["exit_sets"], strict=True):
        assert case.keys() == again.keys()
        for name, value in case.items():
            assert again[name] == (pytest.approx(value, abs=1e-6) if name in numbers and value is not None else value)
    assert len({tuple(case["exits"].items()) for case in VECTORS["exit_sets"]}) > 2


def test_the_script_writes_the_same_samples_and_fits(written):
    for exact in ("images", "labels", "answers", "pool"):
        assert written[exact] == VECTORS[exact]
    assert written["predicted_ms"] == pytest.approx(VECTORS["predicted_ms"])
    for name in ("scale", "offset_ms", "memory_scale", "memory_offset_bytes"):
        assert written["profile"][name] == pytest.approx(VECTORS["profile"][name])
    factors = [[edge["factor"] for edge in one["profile"]["edges"]] for one in (written, VECTORS)]
    assert factors[0] == pytest.approx(factors[1])


def test_the_script_finds_the_same_at_other_latencies(written):
    searches, again = VECTORS["pool_searches"], written["pool_searches"]
    pairs = zip([*searches["cases"], searches["fill"]], [*again["cases"], again["fill"]], strict=True)
    for case, other in pairs:
        assert case["budget"] == other["budget"]
        assert list(case["found"] or ()) == list(other["found"] or ()), "python tests/contract/write_adaptations.py"
        for subnet, numbers in (case["found"] or {}).items():
            assert other["found"][subnet] == pytest.approx(numbers, abs=1e-6)
    assert [case["found"] is None for case in searches["cases"]] == [False, False, True]


def test_the_cases_choose_differently_and_lose_accuracy_where_the_budget_is_small():
    assert len({case["chosen"] for case in VECTORS["cases"]}) >= 3
    assert any(case["accuracy_holdout"] < case["full_accuracy_holdout"] for case in VECTORS["cases"])
