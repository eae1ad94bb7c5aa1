"""An operator, a server and a device as they are used: keys rotate and are revoked, releases expire, clocks jump."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from device_sdk.errors import BundleError, ClockError, ExpiredError, SignatureError, UsageError
from device_sdk.logs.adaptation_log import Delivered, read_log
from device_sdk.runtimes import make_runtime, runs_on
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.opening import open_location
from pathweave.server_process import running_server

ROOT = Path(__file__).parents[2]
DAY_S = 24 * 3600


@dataclass
class Operator:
    """Has keys and key lists in ``folder``, and the bundle that is served."""

    folder: Path
    served: Path = field(init=False)

    def __post_init__(self) -> None:
        self.served = self.folder / "bundles"
        shutil.copytree(ROOT / "tests" / "contract" / "bundle", self.served / "reference")
        for name in ("root-1", "root-2", "root-3", "release-1", "release-2"):
            self.run(f"sign key new {name}")
        self.run(
            "sign key list new bundles/keys --root root-1.pub --root root-2.pub --threshold 2 --release release-1.pub"
        )
        self.sign_list("root-1", "root-2")
        shutil.copy(self.served / "keys" / "1.json", self.folder / "pinned.json")

    def run(self, line: str) -> dict[str, object]:
        """A command as a person starts it."""
        command = [sys.executable, "-m", "pathweave", *line.split(), "--json"]
        environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def sign_list(self, *names: str) -> None:
        for name in names:
            last = self.run(f"sign key list sign bundles/keys --key {name}.key")
        assert last["complete"]

    def release(self, version: int, key: str = "release-1", days: float = 30) -> None:
        """Give the bundle a version, and release it."""
        path = self.served / "reference" / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": version}))
        self.run(f"sign release sign bundles/reference --keys bundles/keys --key {key}.key --expires-days {days}")

    def parts(self) -> dict[str, bytes]:
        return {name: (self.served / "reference" / name).read_bytes() for name in ("manifest.json", "release.json")}

    def put(self, **parts: bytes) -> None:
        for name, data in parts.items():
            (self.served / "reference" / f"{name}.json").write_bytes(data)


@dataclass
class Device:
    """Has list 1 from its application."""

    address: str
    pinned: bytes
    state: Path

    def version(self) -> int:
        """Open it as an application does."""
        with AdaptiveModel.open(self.address, trust=self.pinned, state_folder=self.state) as model:
            self.log = model.log.path
            return model.bundle.manifest.version

    @property
    def failure(self) -> str:
        """Why the last update was not installed, by the log."""
        *_, last = [line.event for line in read_log(self.log) if isinstance(line.event, Delivered)]
        assert last.how == "kept"
        return last.failure or ""

    def version_at(self, clock_s: float) -> tuple[int, str]:
        """The same when its clock says ``clock_s``: version, and how it came."""
        bundle, delivered = open_location(
            self.address,
            trust=self.pinned,
            runtime=make_runtime("onnxruntime", threads=1),
            settings=RuntimeSettings(),
            accepts=runs_on("onnxruntime"),
            state_folder=self.state,
            wall_clock=lambda: clock_s,
        )
        assert delivered is not None
        return bundle.manifest.version, delivered.failure or delivered.source


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """An operator whose folder tests copy: making keys takes a second."""
    return Operator(tmp_path_factory.mktemp("operator")).folder


@pytest.fixture
def operator(keys, tmp_path):
    made = Operator.__new__(Operator)
    made.folder = shutil.copytree(keys, tmp_path / "operator")
    made.served = made.folder / "bundles"
    return made


@pytest.fixture
def device(operator, tmp_path):
    operator.release(1)
    with running_server(operator.served, data=tmp_path / "server") as url:
        pinned = (operator.folder / "pinned.json").read_bytes()
        yield Device(f"{url}/v1/bundles/reference", pinned, tmp_path / "state")


def test_keys_rotate_and_a_revoked_one_installs_nothing(operator, device):
    assert device.version() == 1
    operator.run(
        "sign key list next bundles/keys --add-root root-3.pub --remove-root root-1.pub"
        " --add-release release-2.pub --remove-release release-1.pub"
    )
    operator.sign_list("root-1", "root-2", "root-3")
    operator.release(2, key="release-2")
    assert device.version() == 2
    revoked = operator.folder / "old.keys"
    revoked.mkdir()
    shutil.copy(operator.folder / "pinned.json", revoked / "1.json")
    path = operator.served / "reference" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": 3}))
    operator.run(f"sign release sign bundles/reference --keys {revoked} --key release-1.key")
    (operator.served / "keys" / "2.json").unlink()  # an attacker who has the old key and the server
    assert device.version() == 2
    assert "not signed by a release key of key list 2" in device.failure
    stranger = Device(device.address, device.pinned, device.state.with_name("new device"))
    assert stranger.version() == 3  # list 2 is withheld: a new device learns of it at the latest when list 1 expires


def test_a_frozen_server_is_told_and_the_installed_bundle_goes_on(operator, device):
    operator.release(1, days=1 / DAY_S)
    assert device.version() == 1
    time.sleep(2)
    assert device.version() == 1
    assert "the release of reference 1 expired" in device.failure
    with pytest.raises(ExpiredError, match="newer ones may be withheld"):
        Device(device.address, device.pinned, device.state.with_name("new device")).version()
    [renewed] = operator.run("sign release renew bundles --keys bundles/keys --key release-1.key")["releases"]
    assert renewed["renewed"]
    assert Device(device.address, device.pinned, device.state.with_name("new device")).version() == 1


def test_parts_of_two_releases_are_not_mixed_and_older_ones_do_not_come_back(operator, device):
    assert device.version() == 1
    one = operator.parts()
    operator.release(2)
    two = operator.parts()
    operator.put(manifest=one["manifest.json"])
    assert device.version() == 1
    assert "manifest.json is not the one that release.json names" in device.failure
    operator.put(manifest=two["manifest.json"])
    assert device.version() == 2
    operator.put(manifest=one["manifest.json"], release=one["release.json"])
    assert device.version() == 2
    assert "this device has had 2" in device.failure


def test_a_clock_that_jumps_neither_brings_back_the_expired_nor_loses_the_installed(operator, device):
    now_s = time.time()
    operator.release(1, days=1 / DAY_S)
    expired = operator.parts()
    assert device.version_at(now_s) == (1, "downloaded")
    version, failure = device.version_at(now_s + 50 * 365 * DAY_S)
    assert version == 1
    assert "this device's clock says" in failure
    with pytest.raises(ClockError, match="it may be wrong"):
        Device(device.address, device.pinned, device.state.with_name("new device")).version_at(now_s + 1000 * DAY_S)
    assert device.version_at(0) == (1, "unchanged")
    time.sleep(2)
    operator.run("sign release renew bundles --keys bundles/keys --key release-1.key")
    assert device.version_at(time.time()) == (1, "unchanged")
    operator.put(release=expired["release.json"])
    version, failure = device.version_at(now_s)  # set back to when the old release was valid
    assert version == 1
    assert "the release of reference 1 expired" in failure


def test_who_signed_what_is_at_an_address_has_to_be_said(operator, device):
    with pytest.raises(UsageError, match="who signed the bundle"):
        AdaptiveModel.open(device.address, state_folder=device.state)
    with AdaptiveModel.open(device.address, trust=None, state_folder=device.state) as model:
        assert model.bundle.manifest.version == 1
    device.pinned = b"{}"
    with pytest.raises(SignatureError):
        device.version()
    assert issubclass(SignatureError, BundleError)
