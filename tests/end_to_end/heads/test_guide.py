"""docs/guide/head_only.md: its commands are run in order against a real server."""

from __future__ import annotations

import re
from pathlib import Path

from pathweave.cli import main

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "head_only.md").read_text()


def test_the_commands_of_the_guide_fetch_a_head_and_later_the_rest(served, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATHWEAVE_STATE", str(tmp_path / "state"))
    (tmp_path / "digits.pub").write_bytes(served.key.read_bytes())
    lines = re.findall(r"^pathweave .*$", "\n".join(re.findall(r"```console\n(.*?)```", GUIDE, flags=re.DOTALL)), re.M)
    assert [line.split()[1] for line in lines] == ["fetch", "inspect", "adapt", "fetch"]
    blobs = []
    for line in lines:
        assert main(line.replace("https://server/v1/bundles/digits", served.address).split()[1:]) == 0, line
        blobs.append(len(list((tmp_path / "state" / "store" / "blobs").iterdir())))
    assert blobs[0] == blobs[1] == blobs[2] < blobs[3] == len(served.bundle.manifest.blobs())
    assert "a part: the blocks up to cut point" in capsys.readouterr().out
