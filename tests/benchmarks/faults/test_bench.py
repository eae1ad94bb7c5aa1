from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flask", reason="needs the extra: pip install 'pathweave[server]'")
pytest.importorskip("waitress", reason="needs the extra: pip install 'pathweave[server]'")

from benchmarks.faults.bench import TARGETS, figures, table
from benchmarks.faults.processes import Tried, try_promise
from benchmarks.faults.promise import TOLD, Findings, Promise
from benchmarks.faults.promises.registry import PROMISES

pytestmark = pytest.mark.alone
ROOT = Path(__file__).parents[3]
QUICK_ONES = {"R4": 0.5, "R5": 0.1, "S2": 0.3, "S3": 0.4, "S5": 0.1}
ISSUE = [f"R{n}" for n in range(1, 11)] + [f"S{n}" for n in range(1, 9)]

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="promises are tried on Linux")


def test_the_eighteen_promises_fit_their_time():
    assert [one.name for one in PROMISES] == ISSUE
    assert sum(one.seconds for one in PROMISES) <= 900
    assert sum(one.quick_seconds for one in PROMISES) <= 100


def test_nothing_tried_is_nothing_kept():
    found = Findings()
    assert not found.kept
    found.case(True, "")
    assert found.kept


def test_what_breaks_is_counted_by_its_harm_and_told_but_for_the_hundredth():
    found = Findings()
    for number in range(100):
        found.case(False, f"case {number}", "torn")
    found.case(False, "slow", "hung")
    assert (found.cases, found.failures, found.harms) == (101, 101, {"torn": 100, "hung": 1})
    assert len(found.broken) == TOLD


def test_figures_count_a_promise_with_a_part_that_was_not_tried_as_partly_kept():
    def tried(name, **settings):
        return Tried(Promise(name, "", 1, 1, lambda trial, findings: None), Findings(cases=1, **settings), 1.0)

    some = [
        tried("A", kills=3),
        tried("B", missing=["a clock"]),
        tried("C", failures=2, harms={"torn": 1, "leaked": 1}),
    ]
    found = figures(some)
    assert set(TARGETS) <= set(found)
    assert (found["promises_kept"], found["promises_partly"], found["kills"]) == (1, 1, 3)
    assert (found["torn"], found["hung"], found["crashes"], found["leaked"]) == (1, 0, 0, 1)
    assert [row["kept"] for row in table(some)] == ["yes", "partly", "no"]


@needs_linux
@pytest.mark.parametrize("name", QUICK_ONES)
def test_a_promise_is_kept_in_its_shortest_form(name, tmp_path):
    promise = next(one for one in PROMISES if one.name == name)
    found = try_promise(promise, tmp_path / name, seconds=QUICK_ONES[name]).findings
    assert found.kept, found.broken


@needs_linux
@pytest.mark.slow
def test_the_quick_bench_keeps_what_it_tries(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "faults", "--quick", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["promise"] for row in result["table"]] == ISSUE
    assert [row["promise"] for row in result["table"] if row["kept"] == "no"] == []
    assert result["figures"]["kills"] >= 100
