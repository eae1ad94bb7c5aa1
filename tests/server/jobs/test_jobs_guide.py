"""docs/guide/run_the_server.md says how jobs are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.jobs.data_sets import BUILT_IN, data_references
from server.jobs.job_request import check_request, read_request
from server.settings import MIB, Settings

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "run_the_server.md").read_text()


def test_its_job_would_be_taken():
    [body] = re.findall(r"/v1/jobs .*?-d '(.*?)'", GUIDE, flags=re.DOTALL)
    check_request(read_request(body.encode()), known_data=BUILT_IN)


def test_its_data_file_would_be_read(tmp_path):
    [text] = re.findall(r"```toml\n(.*?)```", GUIDE, flags=re.DOTALL)
    (tmp_path / "data.toml").write_text(text)
    assert set(data_references(tmp_path / "data.toml")) == {*BUILT_IN, "cifar-train", "cifar-search"}
    for name in BUILT_IN:
        assert f"`{name}`" in GUIDE


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("packaging jobs at once (`--jobs`)", "jobs_at_once"),
        ("jobs that wait (`--job-queue`)", "max_queued_jobs"),
        ("jobs that are over", "keep_jobs"),
    ],
)
def test_its_limits_are_the_servers(tmp_path, row, value):
    assert f"| {row} | {getattr(Settings(tmp_path, tmp_path), value)} |" in GUIDE


def test_the_largest_weights(tmp_path):
    largest = Settings(tmp_path, tmp_path).max_weights_bytes // MIB
    assert f"| weights sent with a job (`--max-weights-mb`) | {largest} MiB |" in GUIDE


def test_bodies_with_weights_are_let_in_where_jobs_are_taken(tmp_path):
    limits = {"max_body_bytes": 10, "max_weights_bytes": 20}
    assert Settings(tmp_path, tmp_path, **limits).largest_body_bytes == 20
    assert Settings(tmp_path, tmp_path, jobs_at_once=0, **limits).largest_body_bytes == 10
