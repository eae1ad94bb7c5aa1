from __future__ import annotations

import json
import platform
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.runner.age import Age
from benchmarks.runner.report import render_report
from benchmarks.runner.run import (
    BenchOptions,
    BenchOutcome,
    BenchResult,
    Target,
    benchmark_names,
    benchmark_purpose,
    commit_of,
    describe_machine,
    load_benchmark,
    missed_targets,
    read_results,
    run_benchmark,
    write_result,
)
from device_sdk.errors import DataError
from device_sdk.progress import SilentProgress


class CountingBench:
    """A measurement whose figures are given; it remembers what it was called with."""

    def __init__(self, figures: Mapping[str, float], targets: Mapping[str, Target]) -> None:
        self.figures = figures
        self.TARGETS = targets
        self.options: BenchOptions | None = None

    def run(self, options: BenchOptions) -> BenchOutcome:
        assert options.work_folder.is_dir()
        (options.work_folder / "scratch").write_text("x")
        self.options = options
        table: list[dict[str, object]] = [
            {"model": "<a&b>", "ms": np.float32(1.5)},
            {"model": "b", "note": True},
        ]
        return BenchOutcome(figures=self.figures, table=table, data="three numbers")


def run(bench: CountingBench, *, quick: bool = False, name: str = "counting") -> BenchResult:
    ticks: Iterator[float] = iter([10.0, 12.5])
    return run_benchmark(
        bench,
        name=name,
        quick=quick,
        data_folder=Path("data"),
        progress=SilentProgress(),
        clock=lambda: next(ticks),
    )


@pytest.mark.parametrize(
    ("value", "holds"),
    [(1.0, True), (2.0, True), (0.999, False), (2.001, False), (float("nan"), False), (None, False)],
)
def test_a_target_includes_its_bounds_and_nothing_unmeasured(value: float | None, holds: bool) -> None:
    assert Target(minimum=1.0, maximum=2.0).holds(value) is holds


def test_an_absent_figure_counts_as_missed() -> None:
    targets = {"accuracy": Target(minimum=0.9), "ratio": Target(maximum=1.02), "gone": Target(minimum=0)}
    assert missed_targets({"accuracy": 0.8, "ratio": 1.02}, targets) == ["accuracy", "gone"]


def test_a_result_tells_everything_it_depends_on_and_survives_its_file(tmp_path: Path) -> None:
    bench = CountingBench({"accuracy": np.float64(0.95), "ratio": 1.5}, {"ratio": Target(maximum=1.02)})
    result = run(bench)
    path = write_result(result, tmp_path)

    assert path == tmp_path / "counting.json"
    assert read_results(tmp_path) == [result]
    written = json.loads(path.read_text())
    assert list(written) == [
        *("bench", "quick", "commit", "machine", "data", "figures", "table", "seconds", "targets", "missed")
    ]
    assert written["figures"] == {"accuracy": 0.95, "ratio": 1.5}
    assert written["seconds"] == 2.5
    assert written["missed"] == ["ratio"]
    assert written["table"][0] == {"model": "<a&b>", "ms": 1.5}


def test_the_work_folder_is_gone_afterwards() -> None:
    bench = CountingBench({}, {})
    run(bench)
    assert bench.options is not None
    assert not bench.options.work_folder.exists()


def test_a_quick_run_never_overwrites_a_full_one(tmp_path: Path) -> None:
    full = write_result(run(CountingBench({"x": 1}, {})), tmp_path)
    quick = write_result(run(CountingBench({"x": 2}, {}), quick=True), tmp_path)
    assert full != quick
    assert [result.figures["x"] for result in read_results(tmp_path)] == [2, 1]


def test_a_figure_that_is_not_a_number_becomes_null_and_is_missed(tmp_path: Path) -> None:
    result = run(CountingBench({"ratio": float("nan")}, {"ratio": Target(maximum=1)}))
    written = json.loads(write_result(result, tmp_path).read_text())
    assert written["figures"] == {"ratio": None}
    assert written["missed"] == ["ratio"]


def test_results_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no bench results"):
        read_results(tmp_path)
    (tmp_path / "half.json").write_text('{"bench": "half"')
    with pytest.raises(DataError, match=r"half\.json is not a bench result"):
        read_results(tmp_path)


def test_the_machine_is_described_without_naming_it() -> None:
    machine = describe_machine()
    assert machine.os == f"{platform.system()} {platform.machine()}"
    assert machine.cores >= 1
    assert machine.cpu
    assert machine.libraries["numpy"] == np.__version__


def test_the_commit_says_whether_something_else_than_results_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null")
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert commit_of(tmp_path) == "unknown"
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "a.json").write_text("1")
    (tmp_path / "code.py").write_text("1")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    head = git("rev-parse", "HEAD")

    (results / "a.json").write_text("2")
    assert commit_of(tmp_path) == head
    (tmp_path / "code.py").write_text("2")
    assert commit_of(tmp_path) == f"{head}-dirty"


def test_measurements_are_found_and_described_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "found_benches"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_shared.py").touch()
    (package / "loud.py").write_text('"""What it measures.\n\nMore."""\nraise RuntimeError("imported")\n')
    (package / "real.py").write_text("TARGETS = {}\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert benchmark_names("found_benches") == ["loud", "real"]
    assert benchmark_purpose("loud", "found_benches") == "What it measures."
    assert benchmark_purpose("real", "found_benches") == ""
    assert load_benchmark("real", "found_benches").TARGETS == {}


def test_the_report_shows_missed_targets_and_loads_nothing(tmp_path: Path) -> None:
    targets = {"ratio": Target(maximum=1.02), "share": Target(minimum=0.5), "gone": Target(minimum=1)}
    result = run(CountingBench({"ratio": 1.5, "share": 0.6, "free": -3.0}, targets))
    ages = {"counting": Age(0), "other": Age(3)}
    page = render_report([result, run(CountingBench({}, {}), quick=True, name="other")], ages)

    assert "2 targets missed" in page
    assert page.count('<span class="bad">missed</span>') == 2
    assert "not measured" in page
    assert "at most 1.02" in page
    assert "&lt;a&amp;b&gt;" in page
    assert "<a&b>" not in page
    assert "other (quick)" in page
    assert "1 older than the code that they measure" in page
    assert page.count("older than the code it measures: 3 commits since") == 1
    assert "http" not in page
    assert "src=" not in page
    for svg in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + svg.split("</svg>")[0] + "</svg>")


def test_a_report_without_misses_says_so() -> None:
    page = render_report([run(CountingBench({"x": 1}, {"x": Target(minimum=1)}))], {"counting": Age(0)})
    assert "all targets met, none is old" in page
