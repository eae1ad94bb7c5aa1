"""R1: updates of a device and runs of the packager that are killed."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.faults.device import Device
from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.small_bundle import SERVED
from benchmarks.faults.tools.crash_points import count_changes, killed_after, killed_before
from benchmarks.faults.tools.fault_proxy import FolderServer
from benchmarks.faults.tools.full_disk import small_disk
from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import PathweaveError
from packager.output.bundle_folder import BundleWriter
from packager.output.folder_exchange import Swap, swap_folders
from packager.output.output_claim import OutputClaim

DISK_BYTES = 64_000_000
WHOLE_S, KILLS = 30.0, 1000  # a trial that is given as much goes on until there were so many


def active_bundle(trial: Trial, findings: Findings) -> None:
    """R1: device updates and packager runs are killed before each change to the disk, and at random times."""
    with small_disk(trial.folder / "disk", DISK_BYTES) as mounted:  # a kill does not care for disks, which are slow
        _try_kills(replace(trial, folder=trial.folder / "disk"), findings)
    findings.note("on a tmpfs" if mounted else "on this machine's disk")


def _try_kills(trial: Trial, findings: Findings) -> None:
    device, packager = _DeviceUpdates(trial, findings), _PackagerRuns(trial, findings)
    ends_s, last_s, thorough = trial.ends_s(), trial.ends_s(3.0), trial.seconds >= WHOLE_S
    with FolderServer(trial.folder / "www") as server:
        device.serve(server.port)
        turn = 0
        while turn == 0 or trial.clock() < ends_s or (thorough and findings.kills < KILLS and trial.clock() < last_s):
            for kind, share in ((device, 0.4), (packager, 0.9)):
                if turn % 2 == 0:
                    stop_s = None if thorough and turn == 0 else ends_s - (1 - share) * trial.seconds
                    _at_each_change(kind, findings, stop_s, trial)
                _at_random(kind, findings, count=20 if thorough else 5)
            turn += 1
    for kind in (device, packager) if thorough else ():
        seen = sorted(kind.seen)
        findings.case(seen == [1, 2], f"kills left versions {seen} only: they came too early or too late")
    findings.note(f"{device.kills} kills of device updates, {packager.kills} of packager runs")


class _Killed(ABC):
    """An operation that is killed, and what is looked at afterwards."""

    def __init__(self, trial: Trial) -> None:
        self.random = trial.random
        self.kills = 0
        self.seen: set[int] = set()

    @abstractmethod
    def begin(self) -> Callable[[], object]:
        """A fresh start; returns the operation."""

    @abstractmethod
    def look(self) -> None:
        """Judge what the kill left."""


def _at_each_change(kind: _Killed, findings: Findings, ends_s: float | None, trial: Trial) -> None:
    """In a random order, of which any beginning is spread over the operation."""
    points = 1 + kind.random.permutation(count_changes(kind.begin()))
    for point in points:
        _counted(kind, findings, killed_before(kind.begin(), int(point)))
        kind.look()
        if ends_s is not None and trial.clock() > ends_s:
            return


def _at_random(kind: _Killed, findings: Findings, *, count: int) -> None:
    began_s = time.monotonic()
    _counted(kind, findings, killed_after(kind.begin(), 60.0))
    took_s = time.monotonic() - began_s
    for _ in range(count):
        _counted(kind, findings, killed_after(kind.begin(), kind.random.uniform(0, took_s)))
        kind.look()


def _counted(kind: _Killed, findings: Findings, killed: bool) -> None:
    kind.kills += killed
    findings.kills += killed


class _DeviceUpdates(_Killed):
    """The update of one blob, from version 1 to 2."""

    def __init__(self, trial: Trial, findings: Findings) -> None:
        super().__init__(trial)
        self._trial, self._findings = trial, findings
        self._start, self._state = trial.folder / "start", trial.folder / "state"

    def serve(self, port: int) -> None:
        served = self._trial.folder / "www" / SERVED
        self._url, self._key = f"http://127.0.0.1:{port}/{SERVED}", self._trial.bundle.public_key
        self._start.mkdir()
        self._trial.bundle.publish(served, 1)
        Device(self._url, self._start, self._key).open()
        self._trial.bundle.publish(served, 2)

    def begin(self) -> Callable[[], object]:
        shutil.rmtree(self._state, ignore_errors=True)
        shutil.copytree(self._start, self._state)
        return Device(self._url, self._state, self._key).open

    def look(self) -> None:
        device = Device(self._url, self._state, self._key)
        version = _typed(device.stored_version, self._findings)
        self.seen.add(version)
        self._findings.case(version in (1, 2), f"version {version} is here after a kill", "torn")
        version = _typed(lambda: device.open()[0], self._findings)
        self._findings.case(version == 2, f"version {version} opens after a kill and another update", "torn")
        left = device.left_behind()
        self._findings.case(not left, f"left behind: {left[:3]}")


class _PackagerRuns(_Killed):
    """The writing of a bundle over an older one, by the atomic exchange and by two renames in turn."""

    def __init__(self, trial: Trial, findings: Findings) -> None:
        super().__init__(trial)
        self._findings = findings
        self._bundle = Bundle.open(trial.bundle.folder)
        self._seed, self._run = trial.folder / "seed", trial.folder / "run"
        self._exchanges = False
        self._write(self._seed / "out", 1, swap_folders)

    def begin(self) -> Callable[[], object]:
        shutil.rmtree(self._run, ignore_errors=True)
        shutil.copytree(self._seed, self._run)
        self._exchanges = not self._exchanges
        swap = _counted_swap if self._exchanges else _no_swap
        return lambda: self._write(self._run / "out", 2, swap)

    def _write(self, out: Path, version: int, swap: Swap) -> None:
        manifest = msgspec.structs.replace(self._bundle.manifest, version=version)
        with OutputClaim(out) as claim, BundleWriter(claim, swap=swap) as writer:
            for name in manifest.blobs():
                writer.add_blob(self._bundle.read_blob(name))
            writer.finish(manifest, private_key=None)

    def look(self) -> None:
        out = self._run / "out"
        if self._exchanges:  # else there may be none until the next run
            version = _typed(lambda: _whole_version(out), self._findings)
            self.seen.add(version)
            self._findings.case(version in (1, 2), f"version {version} is packaged after a kill", "torn")
        with OutputClaim(out):
            version = _typed(lambda: _whole_version(out), self._findings)
        self._findings.case(version in (1, 2), f"version {version} is packaged after a kill and a recovery", "torn")
        left = [path.name for path in out.parent.iterdir() if path.name != "out"]
        self._findings.case(not left, f"left behind: {left[:3]}")


def _counted_swap(one: Path, other: Path) -> bool:
    with open(os.devnull, "wb"):  # a change that the crash points see: the exchange itself is a raw system call
        pass
    return swap_folders(one, other)


def _no_swap(one: Path, other: Path) -> bool:
    return False


def _whole_version(out: Path) -> int:
    bundle = Bundle.open(out)
    bundle.verify()
    return bundle.manifest.version


def _typed(version: Callable[[], int], findings: Findings) -> int:
    """The version, or -1 for an error."""
    try:
        return version()
    except PathweaveError as error:
        findings.note(f"first error: {type(error).__name__}: {error}")
        return -1
