from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.runner.age import Age, ages, measured_paths
from benchmarks.runner.run import BenchResult, benchmark_names, describe_machine, package_folder

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    def run(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet")
    return run


def committed(git: Git, folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    git("add", ".")
    git("commit", "--quiet", "-m", text)
    return git("rev-parse", "HEAD")


def result(commit: str, bench: str = "counting") -> BenchResult:
    return BenchResult(
        bench=bench,
        quick=False,
        commit=commit,
        machine=describe_machine(),
        data="",
        figures={},
        table=[],
        seconds=1.0,
        targets={},
        missed=[],
    )


def test_a_result_is_old_once_its_code_has_changed_and_not_by_other_changes(tmp_path: Path, git: Git) -> None:
    measured = committed(git, tmp_path, "search.py", "1")
    committed(git, tmp_path, "other.py", "1")
    paths = {"counting": ("search.py",)}
    assert ages([result(measured)], paths, tmp_path) == {"counting": Age(0)}
    assert ages([result(f"{measured}-dirty")], paths, tmp_path) == {"counting": Age(0)}

    committed(git, tmp_path, "search.py", "2")
    committed(git, tmp_path, "search.py", "3")
    assert ages([result(measured)], paths, tmp_path) == {"counting": Age(2)}
    assert str(Age(2)) == "older than the code it measures: 2 commits since"


def test_a_result_of_an_unknown_commit_is_old(tmp_path: Path, git: Git) -> None:
    committed(git, tmp_path, "search.py", "1")
    for commit in ("unknown", "0" * 40):
        found = ages([result(commit)], {"counting": ("search.py",)}, tmp_path)
        assert found == {"counting": Age(None)}
        assert found["counting"].is_old


def test_a_bench_that_declares_nothing_is_aged_by_every_change(tmp_path: Path, git: Git) -> None:
    measured = committed(git, tmp_path, "search.py", "1")
    committed(git, tmp_path, "README.md", "1")
    assert ages([result(measured)], {}, tmp_path) == {"counting": Age(1)}


def test_every_benchmark_declares_paths_that_exist() -> None:
    declared, root = measured_paths(), package_folder("benchmarks").parent
    assert sorted(declared) == benchmark_names()
    assert [path for paths in declared.values() for path in paths if not (root / path).exists()] == []
