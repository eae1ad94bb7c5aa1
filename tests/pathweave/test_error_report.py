from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pathweave.error_report import described, shortened, write_error_report


def failure(message: object) -> BaseException:
    try:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise ValueError(message) from cause
    except ValueError as error:
        return error


def test_a_report_has_traceback_cause_versions_and_command():
    text = described(failure("odd"), ["pathweave", "run", "b"])
    assert text.index("KeyError") < text.index("ValueError: odd")
    assert "in failure" in text
    assert "command: pathweave run b" in text
    assert "numpy" in text


@pytest.mark.parametrize(
    "words", [["--token", "hunter2"], ["--token=hunter2"], ["--enrol-code", "hunter2"], ["https://me:hunter2@host/b"]]
)
def test_secrets_stay_out(words):
    assert "hunter2" not in described(failure("odd"), ["pathweave", "fetch", *words])


def test_pixels_in_a_message_and_the_home_folder_stay_out():
    text = described(failure(np.arange(100_000).tolist()), ["pathweave", str(Path.home() / "b")])
    assert "99999" not in text
    assert str(Path.home()) not in text


def test_a_message_becomes_one_short_printable_line():
    assert shortened("a\nb\x00\x1bc") == "a b c"
    assert len(shortened("x" * 10_000)) == 301


def test_the_same_error_has_one_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHWEAVE_STATE", str(tmp_path))
    paths = {write_error_report(failure("odd"), ["pathweave"]) for _ in range(3)}
    assert len(paths) == len(list((tmp_path / "reports").iterdir())) == 1


def test_a_state_folder_that_cannot_be_written_is_replaced_by_that_for_temporary_files(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PATHWEAVE_STATE", str(tmp_path / "file"))
    path = write_error_report(failure("odd"), ["pathweave"])
    assert path is not None
    assert path.is_file()
    path.unlink()
