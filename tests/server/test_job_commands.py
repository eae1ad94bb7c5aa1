"""Publishing with the command: tests/server/jobs/test_identity.py."""

from __future__ import annotations

from pathweave.cli import main
from server.job_commands import jobs


def test_an_empty_list_and_refusals(serve, tiny, capsys):
    server = serve(tiny.folder, token="secret")
    assert main(["list", server.url, "--token", "secret"], group=jobs) == 0
    assert capsys.readouterr().out.strip() == "no job"
    assert main(["publish", server.url, "unknown", "--token", "secret"], group=jobs) == 1
    assert "there is no such job" in capsys.readouterr().err
    assert main(["list", server.url, "--token", "wrong"], group=jobs) == 1
