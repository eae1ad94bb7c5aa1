from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk.errors import StorageError, UsageError
from pathweave.demo import run_demo


def test_a_work_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        run_demo(report_path=tmp_path / "report.html", work_folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_report_that_cannot_be_written_is_noticed_before_the_work_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        run_demo(report_path=tmp_path / "file" / "report.html", work_folder=tmp_path / "work")
    assert not (tmp_path / "work").exists()
