from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_sdk.commands.command_line import LineProgress
from device_sdk.progress import FileProgress, Progress, SilentProgress, TerminalProgress

ADAPTERS: list[Callable[[Path], Progress]] = [
    lambda _: SilentProgress(),
    lambda _: TerminalProgress(),
    lambda _: LineProgress(),
    lambda folder: FileProgress(folder / "progress.json", SilentProgress()),
    lambda folder: FileProgress(folder / "progress.json", TerminalProgress()),
]


@pytest.fixture(params=ADAPTERS, ids=["silent", "terminal", "line", "file", "file and terminal"])
def progress(request: pytest.FixtureRequest, tmp_path: Path) -> Progress:
    adapter: Progress = request.param(tmp_path)
    return adapter


def test_tasks_can_be_nested_and_follow_each_other(progress: Progress) -> None:
    for _ in range(2):
        with progress.task("outer", 2) as outer:
            with progress.task("inner", 1) as inner:
                inner.advance()
            outer.note("half")
            outer.advance(2)


def test_a_task_may_stop_early_overrun_or_have_nothing_to_do(progress: Progress) -> None:
    with progress.task("early", 10) as task:
        task.advance(1)
    with progress.task("overrun", 1) as task:
        task.advance(5)
    with progress.task("empty", 0) as task:
        task.note("nothing to do")


def test_an_error_inside_a_task_comes_out_unchanged(progress: Progress) -> None:
    with pytest.raises(ValueError, match="mine"), progress.task("failing", 1):
        raise ValueError("mine")


def test_nothing_is_written_to_standard_output(progress: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.task("work", 3) as task:
        task.advance(3)
    assert capsys.readouterr().out == ""


# In a file


class Clock:
    """Seconds that only the test lets pass."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "progress.json"


@pytest.fixture
def in_file(file: Path, clock: Clock) -> FileProgress:
    return FileProgress(file, SilentProgress(), clock=clock)


def told(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found


def test_a_file_tells_of_a_new_task_at_once(in_file: FileProgress, file: Path) -> None:
    for name in ("one", "two"):
        with in_file.task(name, 4):
            assert told(file) == {"task": name, "share": 0.0, "note": "", "elapsed_s": 0.0}


def test_a_file_counts_what_earlier_runs_did(in_file: FileProgress, file: Path, clock: Clock) -> None:
    with in_file.task("train", 10, done=6) as task:
        assert told(file)["share"] == 0.6
        clock.now_s += 1
        task.advance(2)
        assert told(file)["share"] == 0.8


def test_a_file_is_written_at_most_twice_a_second(in_file: FileProgress, file: Path, clock: Clock) -> None:
    with in_file.task("train", 10) as task:
        clock.now_s += 0.4
        task.advance(2)
        task.note("loss 1")
        assert told(file)["share"] == 0.0
        clock.now_s += 0.1
        task.advance(2)
        assert told(file) == {"task": "train", "share": 0.4, "note": "loss 1", "elapsed_s": 0.5}
        clock.now_s += 0.49
        task.advance()
        assert told(file)["share"] == 0.4
        clock.now_s += 0.01
        task.note("loss 0.5")
        assert told(file) == {"task": "train", "share": 0.5, "note": "loss 0.5", "elapsed_s": 1.0}


def test_the_share_in_a_file_stays_between_nothing_and_all(in_file: FileProgress, file: Path, clock: Clock) -> None:
    for total, amount, share in ((2.0, 5.0, 1.0), (2.0, -1.0, 0.0), (0.0, 1.0, 0.0)):
        with in_file.task("odd", total) as task:
            clock.now_s += 1
            task.advance(amount)
            assert told(file)["share"] == share


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "no_folder").write_text("")
    done = 0
    with FileProgress(tmp_path / "no_folder" / "x.json", SilentProgress(), interval_s=0).task("work", 3) as task:
        for _ in range(3):
            task.advance()
            done += 1
    assert done == 3


def test_what_a_file_tells_is_shown_as_well(file: Path) -> None:
    lines: list[str] = []
    shown = LineProgress(interval_s=0, write=lines.append)
    with FileProgress(file, shown).task("work", 2) as task:
        task.note("half")
        task.advance()
    assert lines
    assert lines[0].startswith("work: 50%")
    assert "(half)" in lines[0]
