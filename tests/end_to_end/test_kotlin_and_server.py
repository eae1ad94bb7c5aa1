"""The Kotlin core as a device of the Python server: it fetches a bundle, adapts, asks, and sends its log."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from device_sdk.delivery.log_upload import UploadResult, upload_log
from device_sdk.logs.adaptation_log import (
    Adapted,
    Delivered,
    Escalating,
    ExitsExchanged,
    Opened,
    Profiled,
    Splitting,
    read_log,
)
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.gathering import AdaptationSettings, search_positions
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import Answer
from device_sdk.session.device_state import device_id
from device_sdk.supernet.plan import decode_plan
from device_sdk.transports import make_transport
from pathweave.server_process import ServerProcess, running_server
from server.access.tokens import TokenStore
from server.fleet.store import FleetStore
from server.settings import database_path
from server.state.database import Database
from server.state.log_store import LogStore
from tests.end_to_end.cutting_proxy import cutting
from tests.end_to_end.kotlin_device import Device

pytestmark = pytest.mark.slow

CONTRACT = Path(__file__).parents[1] / "contract"
COMPARED = 20


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
        assert [type(event) for event in events] == [Delivered, Opened, Profiled, Adapted]
        assert (first["accepted"], first["duplicates"]) == (4, 0)
        assert first["subnet"] == events[-1].subnet
        assert first["device"] == device_id(device.state)

        second = device.run(url, token)  # opened and adapted again; the profile is known
        assert (second["accepted"], second["duplicates"]) == (3, 4)
        transport = make_transport(url, token=token)  # Python sends the same file as the same device
        assert upload_log(log, url, transport, device=device_id(device.state)) == UploadResult(0, 7)
        transport.close()
    lines = list(read_log(log))
    assert stored(data) == sorted(msgspec.json.encode(line) for line in lines)
    [known] = FleetStore(Database(database_path(data))).senders()
    assert (known.device, known.lines) == (first["device"], len(lines)) == (first["device"], 7)


def test_without_a_token_nothing_is_fetched_and_nothing_stored(device: Device, data: Path, tmp_path: Path) -> None:
    TokenStore(Database(database_path(data))).new("phone", days=1)
    with serving(tmp_path, data) as url:
        done = device.start(url, token=None)
    assert done.returncode == 1
    assert "401" in done.stderr
    assert stored(data) == []


def lines_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def python_answers(folder: Path, plan: dict[str, Any], url: str, images: Path, token: str) -> tuple[Answer, ...]:
    """What Python answers to the images, one by one, with the same plan and servers."""
    pixels = np.frombuffer(images.read_bytes(), np.uint8).reshape(-1, 2, 2, 3)
    with AdaptiveModel.open(CONTRACT / "bundle", state_folder=folder) as model:
        for kind in (":images", ":tail"):
            model.remote.connect(
                RemoteModel(server=url, model=f"reference{kind}", token=token, privacy="inputs", timeout_s=5.0)
            )
        model.use(decode_plan(json.dumps(plan).encode()))
        return tuple(model(image) for image in pixels)


def test_the_whole_round_with_cut_downloads_hard_samples_and_a_server_that_is_killed(
    device: Device, data: Path, tmp_path: Path
) -> None:
    """1 downloads that are cut go on where they ended; 2 verified, adapted, exits on demand; 3 the server answers hard
    samples and tails as for Python; 4 each log line arrives once; 5 after a kill the device answers everything."""
    token = TokenStore(Database(database_path(data))).new("phone", days=1)
    shutil.copytree(CONTRACT / "bundle", tmp_path / "bundles" / "reference")
    server = ServerProcess(tmp_path / "bundles", data=data)
    try:
        with cutting(server.url, part="/blobs/", cuts=2) as (url, proxy):
            process = device.begin(url, token, asks=150)
            answers = lines_of(process)
            first = next(answers, None)
            if first is None:
                process.wait(timeout=60)
                pytest.fail(process.stderr.read() if process.stderr else "")
            assert proxy.cuts == 0  # 1
            assert len(proxy.resumed) == 2
            log = Path(first["log"])
            events = [type(line.event) for line in read_log(log)]
            assert events[:5] == [Delivered, Opened, Profiled, Adapted, ExitsExchanged]  # 2
            assert {Escalating, Splitting} <= set(events)
            for kind in ("asked", "split", "early"):  # 3
                images = device.folder / "images"
                found = python_answers(tmp_path / "python", first[kind]["plan"], server.url, images, token)
                assert first[kind]["source"] == [answer.source[0] for answer in found[:COMPARED]]
                assert first[kind]["labels"] == [answer.labels[0] for answer in found[:COMPARED]]
                assert "server" in first[kind]["source"]
            assert {"server", "subnet"} == set(first["asked"]["source"])
            assert len({"server", "subnet"} | set(first["early"]["source"])) == 3  # an exit answers some
            planned = python_answers(tmp_path / "python", first["planned"]["plan"], server.url, images, token)
            labels = np.frombuffer((device.folder / "labels").read_bytes(), np.uint8)
            right = [answer.output[0].argmax() == label for answer, label in zip(planned, labels, strict=True)]
            chose, _ = search_positions(labels.astype(np.int64), AdaptationSettings())  # the others judge
            assert first["planned"]["accuracy"] == pytest.approx(np.mean(np.array(right)[chose]))
            assert (first["accepted"], first["duplicates"]) == (len(events), 0)  # 4
            with closing(make_transport(server.url, token=token)) as transport:
                again = upload_log(log, server.url, transport, device=first["device"])
            assert again == UploadResult(0, len(events))
            assert process.stderr is not None
            assert "the server answers" in process.stderr.readline()
            server.kill()  # 5
            last = next(answers)
        assert process.wait(timeout=60) == 0
    finally:
        server.kill()
    assert last["unanswered"] == 0
    assert last["sources"]["server"] >= 150
    assert last["sources"]["fallback"] >= 150
    known = [line.event for line in read_log(log)]
    assert any(isinstance(event, Escalating | Splitting) and not event.answering for event in known)
