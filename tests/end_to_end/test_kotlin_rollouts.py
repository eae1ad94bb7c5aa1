"""The Kotlin core in a rollout of the Python server: first in its stage, back by a rollback, halted by reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_sdk.logs.adaptation_log import Delivered, Refused, read_log
from pathweave.server_process import running_server
from server.rollouts import store
from server.settings import database_path
from server.state.database import Database
from tests.end_to_end.kotlin_device import CONTRACT, Device
from tests.end_to_end.test_rollouts import pathweave

pytestmark = pytest.mark.slow

OWNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # of the golden vectors


def publish(folder: Path, version: int, *, breaks: bool = False) -> Path:
    """A version of the reference bundle, signed; one that ``breaks`` states outputs that no device reproduces."""
    shutil.copytree(CONTRACT / "bundle", folder)
    manifest = json.loads((folder / "manifest.json").read_bytes()) | {"version": version}
    if breaks:
        manifest["self_test"]["original"]["samples"][0][0] += 1.0
    data = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(data)
    (folder / "manifest.sig").write_bytes(OWNER.sign(data))
    return folder


def run_both(devices: list[Device], url: str) -> list[dict[str, Any]]:
    """All devices at once."""
    begun = [device.begin(url, None) for device in devices]
    outputs = [process.communicate(timeout=120) for process in begun]
    assert [process.returncode for process in begun] == [0] * len(begun), outputs
    return [json.loads(out) for out, _ in outputs]


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """Version 1, signed, and the signed way back to it from version 2."""
    pem = OWNER.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "key").write_bytes(pem)
    first = publish(tmp_path / "bundles" / "reference-1", 1)
    pathweave("sign", "rollback", first, "--from-version", 2, "--key", tmp_path / "key")
    return first.parent


def test_a_jvm_device_is_in_its_stage_goes_back_and_halts_a_version_that_fails_on_it(
    classpath: str, bundles: Path, tmp_path: Path
) -> None:
    """1 the stage is chosen by tags; 2 the server has what was measured; 3 the signed way back; 4 a broken version."""
    pixel = Device(classpath, tmp_path / "pixel", name="pixel-1", tags="board=pixel")
    other = Device(classpath, tmp_path / "other", name="other-1")
    with running_server(bundles, data=tmp_path / "data") as url:
        assert pixel.run(url, None)["version"] == 1  # its tags are known from here on
        pathweave("admin", "rollouts", "start", url, "reference", 2, "--stage", "100,tag:board=pixel,hold_minutes=60")
        publish(bundles / "reference-2", 2)
        assert [one["version"] for one in run_both([pixel, other], url)] == [2, 1]  # 1
        with Database(database_path(tmp_path / "data")).reading() as connection:
            known = store.known(connection, "reference", "pixel-1")
        assert known is not None
        assert (known.version, known.tags) == (2, "board=pixel")
        assert set(known.measured) == {"model_ms", "latency", "accuracy"}  # 2

        assert pathweave("admin", "rollouts", "reverse", url, 1)["state"] == "reversing"
        back = pixel.run(url, None)  # 3
        assert back["version"] == 1
        *_, came = (line.event for line in read_log(Path(back["log"])) if isinstance(line.event, Delivered))
        assert (came.how, came.version, came.failure) == ("downloaded", 1, None)

        started = ("admin", "rollouts", "start", url, "reference", 3, "--stage", "100", "--no-rollback")
        pathweave(*started)
        publish(bundles / "reference-3", 3, breaks=True)
        kept = run_both([pixel, other], url)  # 4
        assert [one["version"] for one in kept] == [1, 1]
        for one in kept:
            *_, said = (line.event for line in read_log(Path(one["log"])) if isinstance(line.event, Refused))
            assert (said.version, said.reason) == (3, "self_test")
        shown = pathweave("admin", "rollouts", "show", url, 2)
        assert (shown["state"], shown["why"].partition(":")[0]) == ("reversed", "self_test")  # none has it
