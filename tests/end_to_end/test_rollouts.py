"""A release that fails on some devices is halted by their own logs, and those that have it go back at the next open."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.log_upload import upload_log
from device_sdk.logs.adaptation_log import Refused, read_log
from device_sdk.runtimes import make_runtime
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.device_state import DeviceState, SelfTestAttempts, device_id
from device_sdk.session.opening import STRIKES
from device_sdk.signing import signatures
from device_sdk.transports import make_transport
from pathweave.server_process import running_server

ROOT = Path(__file__).parents[2]


def pathweave(*arguments):
    """A command as a person starts it."""
    command = [sys.executable, "-m", "pathweave", *map(str, arguments), "--json"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@dataclass
class Device:
    """An application on a device."""

    server: str
    key: Path
    state: Path

    def opens(self) -> int:
        """Open the bundle and send the log; returns the version."""
        address = f"{self.server}/v1/bundles/reference"
        with AdaptiveModel.open(address, trust=self.key, tags={"board": "pi"}, state_folder=self.state) as model:
            self.log = model.log.path
            version = model.bundle.manifest.version
        with contextlib.closing(make_transport(self.server)) as transport:
            upload_log(self.log, self.server, transport, device=device_id(self.state))
        return version

    def cannot_run(self, folder: Path) -> None:
        """The self-test of the bundle in ``folder`` has failed here."""
        state = DeviceState(self.state, Bundle.open(folder), make_runtime("onnxruntime", threads=1))
        state.save_attempts(SelfTestAttempts(STRIKES, "wrong outputs"))


@pytest.fixture
def bundles(tmp_path):
    """Versions 1 and 2, signed, and the signed way back."""
    folder = tmp_path / "bundles"
    for name, data in zip(("key", "key.pub"), signatures.new_key_pair(), strict=True):
        (tmp_path / name).write_bytes(data)
    for version in (1, 2):
        place = shutil.copytree(ROOT / "tests" / "contract" / "bundle", folder / f"reference-{version}")
        data = json.dumps(json.loads((place / "manifest.json").read_bytes()) | {"version": version}).encode()
        (place / "manifest.json").write_bytes(data)
        (place / "manifest.sig").write_bytes(signatures.sign(data, private_key=tmp_path / "key"))
    pathweave("sign", "rollback", folder / "reference-1", "--from-version", 2, "--key", tmp_path / "key")
    return folder


def test_a_release_that_fails_on_two_devices_is_halted_and_all_others_go_back(bundles, tmp_path):
    (bundles / "reference-2").rename(tmp_path / "later")
    with running_server(bundles, data=tmp_path / "data") as url:
        devices = [Device(url, tmp_path / "key.pub", tmp_path / name) for name in "abcd"]
        fine, *others = devices
        assert [one.opens() for one in devices] == [1, 1, 1, 1]
        started = pathweave("admin", "rollouts", "start", url, "reference", 2, "--stage", "100,hold_minutes=5")
        assert (started["state"], started["fleet_devices"]) == ("planned", 4)
        assert fine.opens() == 1
        (tmp_path / "later").rename(bundles / "reference-2")
        assert fine.opens() == 2
        for device in others[:2]:
            device.cannot_run(bundles / "reference-2")
            assert device.opens() == 1
        *_, said = [line.event for line in read_log(others[0].log) if isinstance(line.event, Refused)]
        assert (said.version, said.reason) == (2, "self_test")
        shown = pathweave("admin", "rollouts", "show", url, 1)
        assert (shown["state"], shown["why"].partition(":")[0]) == ("reversing", "self_test")
        assert [fine.opens(), others[2].opens()] == [1, 1]  # one after it, and one that never had it
        assert pathweave("admin", "rollouts", "list", url)["rollouts"][0]["state"] == "reversed"
    with AdaptiveModel.open(f"{url}/v1/bundles/reference", trust=fine.key, state_folder=fine.state) as model:
        assert model.bundle.manifest.version == 1  # the server is gone
