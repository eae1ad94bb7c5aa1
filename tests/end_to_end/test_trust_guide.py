"""docs/guide/trust.md: its commands are run in order, and end with what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.releasing import read_chain
from device_sdk.errors import SignatureError
from device_sdk.signing.trust import load_trust
from pathweave.cli import main

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "trust.md").read_text()


def test_the_commands_of_the_guide_rotate_a_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tests" / "contract" / "bundle", "bundles/digits")
    lines = re.findall(r"^pathweave .*$", "\n".join(re.findall(r"```console\n(.*?)```", GUIDE, flags=re.DOTALL)), re.M)
    assert len(lines) > 12
    for line in lines:
        assert main(line.split()[1:]) == 0, line
    chain = read_chain(Path("bundles/keys"))
    assert [one.number for one in chain.lists] == [1, 2]
    assert Bundle.open("bundles/digits", trust=chain).manifest.name == "reference"
    with pytest.raises(SignatureError):  # list 1 alone does not know release-2
        Bundle.open("bundles/digits", trust=load_trust("bundles/keys/1.json"))
