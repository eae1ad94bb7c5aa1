"""``python -m benchmarks`` in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def benchmarks(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def test_a_clone_lists_its_benchmarks_from_anywhere(tmp_path: Path) -> None:
    done = benchmarks("list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "overhead" in json.loads(done.stdout)["benches"]


def test_a_missed_target_fails_the_check_and_stays_in_the_file(tmp_path: Path) -> None:
    benches = tmp_path / "benchmarks"  # found before ours, which its runner comes from
    benches.mkdir()
    (benches / "__init__.py").write_text(f"__path__.append({str(ROOT / 'benchmarks')!r})\n")
    (benches / "two.py").write_text(
        '"""Two figures."""\n'
        "from benchmarks.runner.run import BenchOutcome, Target\n"
        "TARGETS = {'good': Target(minimum=1), 'bad': Target(maximum=0.5)}\n"
        "def run(options):\n"
        "    return BenchOutcome(figures={'good': 1.0, 'bad': 0.7}, table=[], data='two numbers')\n"
    )

    done = benchmarks("two", "--check", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: two misses bad\nhint: ")
    written = json.loads((benches / "results" / "two.json").read_text())
    assert json.loads(done.stdout) == written
    assert written["missed"] == ["bad"]

    assert benchmarks("two", "--quick", cwd=tmp_path).returncode == 0
    report = benchmarks("report", "--json", cwd=tmp_path)
    assert json.loads(report.stdout) == {
        "report": "benchmarks/results/report.html",
        "benches": 2,
        "missed": 2,
        "old": ["two"],
    }
    assert (benches / "results" / "report.html").is_file()
