"""``pathweave sign rollback``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from device_sdk.signing.rollback import verify_rollback
from packager.commands.signing import sign
from tests.contract.signed_files import digits, write_pair

REFERENCE = Path(__file__).parents[1] / "contract" / "bundle"


@pytest.fixture
def bundle(tmp_path):
    return shutil.copytree(REFERENCE, tmp_path / "bundle")


def run(*arguments):
    return CliRunner().invoke(sign, ["rollback", *map(str, arguments), "--json"])


def test_a_rollback_is_written_beside_the_version_that_it_leads_to(bundle, tmp_path):
    key, _ = write_pair(tmp_path, "release-1")
    told = json.loads(run(bundle, "--from-version", "9", "--key", key).output)
    rollback = verify_rollback((bundle / "rollback.json").read_bytes(), {digits("release-1")})
    assert (rollback.name, rollback.from_version) == (told["name"], 9)
    assert rollback.to_version == json.loads((bundle / "manifest.json").read_bytes())["version"] == told["to_version"]
    assert rollback.expires_at_s - rollback.signed_at_s == 30 * 24 * 3600


def test_a_rollback_has_to_lead_down(bundle, tmp_path):
    key, _ = write_pair(tmp_path, "release-1")
    path = bundle / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": 9}))
    done = run(bundle, "--from-version", "9", "--key", key)
    assert "not below 9" in str(done.exception)
    assert not (bundle / "rollback.json").exists()
