"""Simulated devices: delivery, stores, logs and uploads are the SDK's; self-tests and latencies are made up."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.log_upload import upload_log
from device_sdk.errors import PathweaveError, SelfTestError, TransferError
from device_sdk.logs import adaptation_log
from device_sdk.logs.adaptation_log import AdaptationLog, Adapted, Opened, Profiled
from device_sdk.runtimes import make_runtime, runs_on
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.device_state import device_id, log_path
from device_sdk.session.opening import open_location
from device_sdk.transports import make_transport

NAME = "reference"
_THREADS = 4
_UPLOADS = 6  # an application tries again, as its background job does
_PAUSE_S = 1.0
_NOISE = 0.05  # standard deviation of a measured latency's logarithm


@dataclass(frozen=True)
class Device:
    """A device with a state ``folder``. ``fails``, ``slower``: its self-test of, and its latency with, a version.

    ``choices``: how often it chooses a plan before it sends its log.
    """

    folder: Path
    board: str
    model_ms: float
    fails: frozenset[int] = frozenset()
    slower: tuple[tuple[int, float], ...] = ()
    choices: int = 0


@dataclass(frozen=True)
class Polled:
    """The outcome of a poll. ``failure``: nothing could be fetched; ``refused``: a version is not used here.

    ``written``: lines of the log in all; ``known``: of them at the server after the upload, None if it failed.
    """

    device: str
    version: int
    refused: int | None
    failure: str | None
    bytes_fetched: int
    written: int
    known: int | None


def poll_all(devices: Sequence[Device], url: str, key: Path) -> list[Polled]:
    """Have each device open its bundle and send its log, some at a time."""
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda device: _poll_safely(device, url, key), devices))


def _poll_safely(device: Device, url: str, key: Path) -> Polled:
    try:
        return _poll(device, url, key)
    except PathweaveError as error:  # nothing was ever fetched here
        return Polled(device_id(device.folder), 0, None, str(error), 0, 0, 0)


def _poll(device: Device, url: str, key: Path) -> Polled:
    device.folder.mkdir(parents=True, exist_ok=True)
    name, runtime = device_id(device.folder), make_runtime("onnxruntime", threads=1)

    def self_test(bundle: Bundle) -> None:
        if bundle.manifest.version in device.fails:
            raise SelfTestError("another answer than the golden one")

    bundle, delivered = open_location(
        f"{url}/v1/bundles/{NAME}",
        trust=key,
        tags={"board": device.board},
        runtime=runtime,
        settings=RuntimeSettings("onnxruntime", 1),
        accepts=runs_on("onnxruntime"),
        state_folder=device.folder,
        self_test=self_test,
    )
    assert delivered is not None
    path = log_path(device.folder, bundle)
    first = not path.exists()
    log = AdaptationLog(path, bundle=bundle.digest, runtime="onnxruntime")
    log.write(Opened("o0", restored=not first))
    log.write(adaptation_log.delivered(delivered))
    if delivered.refused is not None:
        log.write(adaptation_log.refused(delivered.refused, delivered.failure))
    if first:
        log.write(_profiled(device, bundle.manifest.version, name))
    for number in range(device.choices):
        log.write(_chosen(device, number))
    written = len(path.read_bytes().splitlines())
    failure = None if delivered.refused is not None or delivered.source != "kept" else delivered.failure
    refused = None if delivered.refused is None else delivered.refused.version
    known = _upload(path, url, name)
    return Polled(name, bundle.manifest.version, refused, failure, delivered.bytes_fetched, written, known)


def _profiled(device: Device, version: int, name: str) -> Profiled:
    noise = random.Random(f"{name}/{version}").gauss(0.0, _NOISE)
    factor = dict(device.slower).get(version, 1.0)
    return Profiled(device.model_ms * factor * (1 + noise), 1.0, 0.0, 0.02)


def _chosen(device: Device, number: int) -> Adapted:
    latency_ms = device.model_ms * 0.5 + number / 1000  # lines that are equal would count once
    return Adapted(device.model_ms, None, "o0", latency_ms, latency_ms, 100_000, 0.9, 0.89, 40, 5, 1.5, "exhausted")


def _upload(path: Path, url: str, name: str) -> int | None:
    for _ in range(_UPLOADS):
        try:
            with contextlib.closing(make_transport(url)) as transport:
                found = upload_log(path, url, transport, device=name)
            return found.accepted + found.duplicates
        except TransferError:
            time.sleep(_PAUSE_S)
        except PathweaveError:
            return None
    return None
