"""One chooser: plans are judged, confirmed and taken in few places, and every caller of these is known here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLERS = {
    r"\bexpected_cost\(": {  # the judge
        "device_sdk/policies/evidence_gathering.py",
        "device_sdk/policies/planning/planner.py",
    },
    r"\bPlanner\(": {"device_sdk/policies/evidence_gathering.py"},
    r"\bConfirmation\(": {"device_sdk/policies/subnet_search.py"},
    r"\bchoose\(": {"device_sdk/session/choosing.py"},
    r"\bsearch_subnets\(": {"device_sdk/policies/chooser.py"},
}


@pytest.mark.parametrize("call", CALLERS)
def test_the_callers_are_exactly_these(call: str) -> None:
    definition = re.compile(r"(def |class )" + call.removeprefix(r"\b"))
    found = set()
    for path in (ROOT / "device_sdk").rglob("*.py"):
        lines = path.read_text().splitlines()
        if any(re.search(call, line) and not definition.search(line) for line in lines):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == CALLERS[call]
