from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.commands.command_line import (
    PROGRESS_FILE,
    LineProgress,
    emit,
    json_option,
    only_results_on_stdout,
    progress,
    to_json,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@click.command()
@json_option
def answer(as_json: bool) -> None:
    emit({"value": 42}, as_json=as_json, text="forty-two")


def test_a_command_answers_a_person_or_a_program() -> None:
    assert CliRunner().invoke(answer, []).output == "forty-two\n"
    assert CliRunner().invoke(answer, ["--json"]).output == '{"value": 42}\n'


def test_text_may_print_by_itself_and_stays_silent_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, as_json=False, text=lambda: print("a table"))
    assert capsys.readouterr().out == "a table\n"
    emit({}, as_json=True, text=lambda: print("a table"))
    assert capsys.readouterr().out == "{}\n"


@given(json_values)
def test_plain_values_pass_unchanged(value: object) -> None:
    assert json.loads(to_json(value)) == value


def test_numbers_that_are_not_finite_become_null() -> None:
    value = {"a": float("nan"), "b": [float("inf"), -1.5], "c": np.array([np.nan, 2.0], dtype=np.float32)}
    assert json.loads(to_json(value)) == {"a": None, "b": [None, -1.5], "c": [None, 2.0]}


def test_numpy_values_and_paths_become_plain() -> None:
    value = {
        "count": np.int64(3),
        "share": np.float32(0.5),
        "yes": np.bool_(True),
        "path": Path("a/b"),
        7: (1, 2),
    }
    assert json.loads(to_json(value)) == {"count": 3, "share": 0.5, "yes": True, "path": "a/b", "7": [1, 2]}


def test_what_has_no_place_in_json_is_refused() -> None:
    with pytest.raises(TypeError):
        to_json({"set": {1, 2}})


def test_only_results_reach_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with only_results_on_stdout():
        print("noise")
        emit({"x": 1}, as_json=True, text="")
    print("afterwards")
    assert capsys.readouterr() == ('{"x": 1}\nafterwards\n', "noise\n")


def lines_of(advances_s: list[float], *, total: float, note: str = "", done: float = 0.0) -> list[str]:
    """What is written when one unit is done at each of these times."""
    times = iter([0.0, *advances_s])
    lines: list[str] = []
    progress = LineProgress(interval_s=30, clock=lambda: next(times), write=lines.append)
    with progress.task("tune", total, done=done) as task:
        if note:
            task.note(note)
        for _ in advances_s:
            task.advance()
    return lines


def test_a_short_task_prints_no_lines() -> None:
    assert lines_of([1, 2, 29.9], total=3) == []


def test_a_long_task_prints_a_line_per_interval_with_the_time_left() -> None:
    assert lines_of([10, 30, 40, 59, 75], total=10, note="loss 0.12") == [
        "tune: 20% after 0:30 min, 2:00 min left (loss 0.12)",
        "tune: 50% after 1:15 min, 1:15 min left (loss 0.12)",
    ]


def test_what_earlier_runs_did_tells_nothing_of_the_time_left() -> None:
    assert lines_of([20, 40], total=10, done=6) == ["tune: 80% after 0:40 min, 0:40 min left"]


def test_a_task_of_unknown_size_still_tells_its_time() -> None:
    assert lines_of([31], total=0) == ["tune: 0:31 min"]


def test_progress_goes_into_the_file_that_the_environment_names(tmp_path: Path) -> None:
    @click.command()
    def work() -> None:
        with progress().task("work", 2):
            pass

    assert CliRunner().invoke(work, env={PROGRESS_FILE: str(tmp_path / "p.json")}).exit_code == 0
    assert json.loads((tmp_path / "p.json").read_bytes())["task"] == "work"


def test_progress_without_a_terminal_is_lines() -> None:
    assert isinstance(progress(as_json=True), LineProgress)
    with CliRunner().isolation():
        assert isinstance(progress(), LineProgress)
