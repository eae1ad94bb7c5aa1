"""R3, R4, R5: updates that are interrupted, raced, or have no room."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.device import Device
from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.serving import serving
from benchmarks.faults.small_bundle import NAME, SERVED, SmallBundle
from benchmarks.faults.tools.fault_proxy import Fault, FaultProxy, FolderServer
from benchmarks.faults.tools.forked import Forked
from benchmarks.faults.tools.full_disk import fill, small_disk, without_room
from device_sdk.bundles.bundle import Bundle
from device_sdk.delivery.store import collect
from device_sdk.errors import PathweaveError
from device_sdk.files import locks
from device_sdk.transports.http import CHUNK_BYTES

INTERRUPTIONS = 50  # half of them kills
BLOB_BYTES = 4_000_000
INSTALLERS = 8
LINGERS_S = 0.5
DISK_BYTES = 2_000_000


def resumed_download(trial: Trial, findings: Findings) -> None:
    """R3: the transfer of one blob is cut and its process killed, in turn."""
    bundles = trial.new_folder("bundles")
    bundle = trial.bundle.publish(bundles / NAME, 2)
    blob = _enlarged(bundle, trial)
    step = BLOB_BYTES // (INTERRUPTIONS + 1)
    with serving(bundles, trial.folder / "server") as server, FaultProxy(server.address[1]) as proxy:
        device = Device(f"{proxy.url}/{SERVED}", trial.folder / "state", trial.bundle.public_key)
        for turn in range(1, INTERRUPTIONS // 2 + 1):
            proxy.faults[blob] = [Fault("cut", step), Fault("stall", step)]
            with Forked(device.open) as child:
                arrived = _wait_until(lambda wanted=2 * turn * step: _partial_bytes(device) >= wanted)  # type: ignore[misc]
                findings.case(arrived, f"only {_partial_bytes(device)} bytes came by interruption {2 * turn}", "hung")
                child.kill()
                findings.kills += 1
        proxy.faults.clear()
        version, _ = device.open()
    starts = [start for path, start in zip(proxy.requests, proxy.starts, strict=True) if path.endswith(blob)]
    again = [before + step - start for before, start in pairwise(starts)]
    for count in again:
        findings.case(count <= CHUNK_BYTES, f"{count} bytes were fetched again after an interruption")
    findings.case(len(again) >= INTERRUPTIONS, f"{len(again)} interruptions")
    findings.case(version == 2, f"version {version} opened", "torn")
    findings.case(not device.left_behind(), f"left behind: {device.left_behind()[:3]}")
    findings.note(f"{len(again)} interruptions, at most {max(again)} bytes fetched again; a chunk has {CHUNK_BYTES}")


def _enlarged(bundle: SmallBundle, trial: Trial) -> str:
    """Give the bundle's own blob BLOB_BYTES; its name."""
    name = bundle.store(trial.random.bytes(BLOB_BYTES))

    def change(manifest: dict[str, Any]) -> None:
        manifest["blocks"][0]["renditions"][1] |= {"blob": name, "size_bytes": BLOB_BYTES}

    bundle.edit(change)
    return name


def _partial_bytes(device: Device) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for path in device.store.partial.iterdir():
            with contextlib.suppress(OSError):
                total = max(total, path.stat().st_size)
    return total


def _wait_until(condition: Callable[[], bool], *, within_s: float = 20.0) -> bool:
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        if condition():
            return True
        time.sleep(0.002)
    return False


def racing_installers(trial: Trial, findings: Findings) -> None:
    """R4: eight processes open the bundle at once again and again while new versions are published."""
    for locked in (True, False):
        _race(trial, findings, locked=locked)
    findings.note("locks are stubbed out as on systems without them: nothing is deleted there")


def _race(trial: Trial, findings: Findings, *, locked: bool) -> None:
    www = trial.folder / f"www-{'locked' if locked else 'unlocked'}"
    versions = _Versions(trial.bundle, www)
    versions.publish()
    with FolderServer(www) as server:
        state = trial.folder / f"state-{www.name}"
        device = Device(f"http://127.0.0.1:{server.port}/{SERVED}", state, trial.bundle.public_key)
        device.open()
        seconds = trial.seconds / 2
        reports = [trial.folder / f"{www.name}-{number}.json" for number in range(INSTALLERS)]
        children = [Forked(lambda path=path: _install(device, path, seconds, locked)) for path in reports]  # type: ignore[misc]
        ends_s = trial.clock() + seconds
        stored = [device.stored_version()]
        while trial.clock() < ends_s:
            versions.publish()
            for _ in range(10):
                time.sleep(0.01)
                stored.append(device.stored_version())
        for child in children:
            findings.case(child.join(30.0) == 0, "an installer did not end by itself", "crashed")
        where = "with locks" if locked else "without locks"
        findings.note(f"{where}: {versions.latest} versions, {INSTALLERS} installers")
        _judge_race(stored, [json.loads(path.read_bytes()) for path in reports], findings, where)
        stored_at_last = device.stored_version()
        findings.case(stored_at_last <= versions.latest, f"{where}: version {stored_at_last} is here", "torn")
        version, _ = device.open()
        findings.case(version == versions.latest, f"{where}: {version} opens, {versions.latest} is served", "torn")
        findings.case(device.stored_version() == versions.latest, f"{where}: {version} was not kept", "torn")
        if locked:
            collect(device.store)
            findings.case(not device.left_behind(), f"left behind: {device.left_behind()[:3]}")


def _judge_race(stored: list[int], reports: list[dict[str, Any]], findings: Findings, where: str) -> None:
    """Neither what is here nor what an installer opens ever goes back. ``reports``: see ``_install``."""
    for before, after in pairwise(stored):
        findings.case(before <= after, f"{where}: version {after} is kept after {before}", "torn")
    for report in reports:
        for error in report["errors"]:
            findings.case(False, f"{where}: {error}", "torn")
        for before, after in pairwise(report["versions"]):
            findings.case(before <= after, f"{where}: version {after} opened after {before}", "torn")


class _Versions:
    """The served folder is a link that is replaced atomically: no request sees half of a version."""

    def __init__(self, bundle: SmallBundle, www: Path) -> None:
        self.latest = 0
        self._bundle, self._served = bundle, www / SERVED
        self._made = www.parent / f"{www.name}-versions"
        self._served.parent.mkdir(parents=True)

    def publish(self) -> None:
        self.latest += 1
        folder = self._made / str(self.latest)
        self._bundle.publish(folder, self.latest)
        link = self._served.with_name("next")
        link.symlink_to(folder)
        os.replace(link, self._served)


def _install(device: Device, report: Path, seconds: float, locked: bool) -> None:
    if not locked:
        vars(locks)["fcntl"] = None
    ends_s = time.monotonic() + seconds
    random = np.random.default_rng(os.getpid())
    versions, errors = [], []

    def linger(bundle: Bundle) -> None:
        """Meanwhile newer versions are published, fetched and installed by others."""
        time.sleep(random.uniform(0.0, LINGERS_S))

    while time.monotonic() < ends_s:
        try:
            versions.append(device.open(self_test=linger)[0])
        except PathweaveError as error:
            errors.append(f"{type(error).__name__}: {error}")
    report.write_text(json.dumps({"versions": versions, "errors": errors}))


def full_disk(trial: Trial, findings: Findings) -> None:
    """R5: the disk is full to within a few kilobytes, more at each turn, when an update comes."""
    www = trial.folder / "www"
    trial.bundle.publish(www / SERVED, 1)
    with FolderServer(www) as server, small_disk(trial.folder / "disk", DISK_BYTES) as mounted:
        url, state = f"http://127.0.0.1:{server.port}/{SERVED}", trial.folder / "disk" / "state"
        device = Device(url, state, trial.bundle.public_key)
        device.open()
        version, ends_s = 1, trial.ends_s()
        for room in range(0, 200):
            version += 1
            trial.bundle.publish(www / SERVED, version)
            if mounted:
                with _only(room * 4096, trial.folder / "disk"):
                    _update(device, findings, version)
            else:
                without_room(lambda version=version: _must_open(device, version - 1))  # type: ignore[misc]
            found = device.open()[0]
            findings.case(found == version, f"with room again {found} opens, not {version}", "torn")
            if trial.clock() > ends_s or (mounted and room > 40):
                break
    if mounted:
        findings.note("a tmpfs with 0, 4, 8 … kB left")
    else:
        findings.missing.append("a full disk: no tmpfs can be mounted here; files could be made but not written to")


@contextlib.contextmanager
def _only(room: int, disk: Path) -> Iterator[None]:
    filler = fill(disk)
    try:
        os.truncate(filler, max(0, filler.stat().st_size - room))
        yield
    finally:
        filler.unlink()


def _update(device: Device, findings: Findings, version: int) -> None:
    try:
        found = device.open()[0]
    except PathweaveError as error:
        findings.case(False, f"on a full disk: {type(error).__name__}: {error}")
        return
    findings.case(found in (version - 1, version), f"version {found} opens on a full disk", "torn")
    stored = device.stored_version()
    findings.case(stored in (version - 1, version), f"version {stored} is kept on a full disk", "torn")


def _must_open(device: Device, version: int) -> None:
    found = device.open()[0]
    if found != version:
        raise AssertionError(f"version {found} opened instead of {version}")
