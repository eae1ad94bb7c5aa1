from __future__ import annotations

import pytest

from device_sdk.command_line import LineProgress
from device_sdk.progress import Progress, SilentProgress, TerminalProgress

ADAPTERS = [SilentProgress(), TerminalProgress(), LineProgress()]


@pytest.fixture(params=ADAPTERS, ids=lambda adapter: type(adapter).__name__)
def progress(request: pytest.FixtureRequest) -> Progress:
    adapter: Progress = request.param
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
