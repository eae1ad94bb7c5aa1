"""The Kotlin core as a device of the Python server: it fetches a bundle, adapts, and sends its log."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from device_sdk.delivery.log_upload import UploadResult, upload_log
from device_sdk.logs.adaptation_log import Adapted, Opened, Profiled, read_log
from device_sdk.session.device_state import device_id
from device_sdk.transports import make_transport
from pathweave.server_process import running_server
from server.database import Database
from server.log_store import LogStore
from server.settings import database_path
from server.tokens import TokenStore

CONTRACT = Path(__file__).parents[1] / "contract"
IMAGES, LATENCY_MS = 120, 1000


class Device:
    """Kotlin's device, with labelled images of its own: the class is the colour that is strongest."""

    def __init__(self, classpath: str, folder: Path) -> None:
        self._classpath, self._folder, self.state = classpath, folder, folder / "state"
        images = np.random.default_rng(3).integers(0, 256, size=(IMAGES, 2, 2, 3), dtype=np.uint8)
        (folder / "images").write_bytes(images.tobytes())
        (folder / "labels").write_bytes(images.sum(axis=(1, 2)).argmax(axis=1).astype(np.uint8).tobytes())
        key = json.loads((CONTRACT / "vectors.json").read_bytes())["signature"]["public_key"]
        (folder / "key.pub").write_text(key)

    def start(self, server: str, token: str | None) -> subprocess.CompletedProcess[str]:
        files = [str(self._folder / name) for name in ("state", "key.pub", "images", "labels")]
        main = ["java", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, "pathweave.sdk.DeviceCliKt"]
        command = [*main, f"{server}/v1/bundles/reference", *files, str(LATENCY_MS)]
        environment = os.environ | ({"PATHWEAVE_TOKEN": token} if token else {})
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    def run(self, server: str, token: str) -> dict[str, Any]:
        done = self.start(server, token)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def device(classpath: str, tmp_path: Path) -> Device:
    return Device(classpath, tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "server"


@contextmanager
def serving(tmp_path: Path, data: Path) -> Iterator[str]:
    if not (tmp_path / "bundles").exists():
        shutil.copytree(CONTRACT / "bundle", tmp_path / "bundles" / "reference")
    with running_server(tmp_path / "bundles", data=data) as url:
        yield url


def stored(data: Path) -> list[bytes]:
    """The lines that the server holds."""
    lines = LogStore(Database(database_path(data)), keep_lines=1000).latest(1000)
    return sorted(msgspec.json.encode(line.line) for line in lines)


def test_a_device_adapts_and_the_server_holds_each_line_of_its_log_once(
    device: Device, data: Path, tmp_path: Path
) -> None:
    token = TokenStore(Database(database_path(data))).new("phone", days=1)
    with serving(tmp_path, data) as url:
        first = device.run(url, token)
        log = Path(first["log"])
        events = [line.event for line in read_log(log)]
        assert [type(event) for event in events] == [Opened, Profiled, Adapted]
        assert (first["accepted"], first["duplicates"]) == (3, 0)
        assert first["subnet"] == events[-1].subnet
        assert first["device"] == device_id(device.state)

        second = device.run(url, token)  # opened and adapted again; the profile is known
        assert (second["accepted"], second["duplicates"]) == (2, 3)
        transport = make_transport(url, token=token)  # Python sends the same file as the same device
        assert upload_log(log, url, transport, device=device_id(device.state)) == UploadResult(0, 5)
        transport.close()
    lines = list(read_log(log))
    assert stored(data) == sorted(msgspec.json.encode(line) for line in lines)
    [known] = LogStore(Database(database_path(data)), keep_lines=1000).devices()
    assert (known.device, known.lines) == (first["device"], len(lines)) == (first["device"], 5)


def test_without_a_token_nothing_is_fetched_and_nothing_stored(device: Device, data: Path, tmp_path: Path) -> None:
    TokenStore(Database(database_path(data))).new("phone", days=1)
    with serving(tmp_path, data) as url:
        done = device.start(url, token=None)
    assert done.returncode == 1
    assert "401" in done.stderr
    assert stored(data) == []
