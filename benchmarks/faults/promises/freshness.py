"""R9 where bundles are released by key lists: freezes, rotations of keys, mixed releases, clocks that jump.

Imported only where ``packager.releasing`` is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.device import Device
from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.small_bundle import SERVED
from benchmarks.faults.tools.clocks import FrozenClock, JumpingClock
from benchmarks.faults.tools.fault_proxy import FolderServer
from device_sdk.bundles.releasing import sign_release
from device_sdk.errors import PathweaveError
from device_sdk.signing import signatures
from packager.releasing import begin, follow, key_of, read_chain, sign_draft

START_S, DAY_S, DAYS = 1_800_000_000, 86_400, 30.0
YEARS_S = 20 * 365 * DAY_S


@dataclass
class _Publisher:
    """Two root keys that must both sign, release keys, and a served folder with the lists and the release."""

    trial: Trial
    served: Path
    clock: FrozenClock = field(default_factory=lambda: FrozenClock(START_S))

    def __post_init__(self) -> None:
        self.keys = self.trial.new_folder("publisher")
        for name in ("root-1", "root-2", "root-3", "release-1", "release-2"):
            for suffix, data in zip(("", ".pub"), signatures.new_key_pair(), strict=True):
                (self.keys / f"{name}{suffix}").write_bytes(data)
        begin(
            self.lists,
            root_keys=[self.public("root-1"), self.public("root-2")],
            root_threshold=2,
            release_keys=[self.public("release-1")],
            now_s=self.now_s,
            days=365,
        )
        self.sign("root-1", "root-2")

    @property
    def lists(self) -> Path:
        return self.keys / "lists"

    @property
    def pinned(self) -> Path:
        return self.lists / "1.json"

    @property
    def now_s(self) -> int:
        return round(self.clock())

    def public(self, name: str) -> str:
        return str(key_of(str(self.keys / f"{name}.pub")))

    def sign(self, *names: str) -> None:
        for name in names:
            sign_draft(self.lists, self.keys / name)

    def publish(self, version: int, *, by: str = "release-1") -> None:
        """A version with its release, and all finished lists."""
        self.trial.bundle.publish(self.served, version)
        sign_release(self.served, read_chain(self.lists), self.keys / by, now_s=self.now_s, days=DAYS)
        self.serve_lists()

    def serve_lists(self) -> None:
        shutil.rmtree(self.served / "keys", ignore_errors=True)
        shutil.copytree(
            self.lists, self.served / "keys", ignore=lambda folder, names: {n for n in names if "draft" in n}
        )


@dataclass
class _Tried:
    """A device that has had a version, and fresh ones, against one publisher."""

    publisher: _Publisher
    url: str
    findings: Findings
    count: int = 0

    def device(self) -> Device:
        self.count += 1
        return Device(self.url, self.publisher.trial.folder / f"fresh-{self.count}", self.publisher.pinned)

    def opens(self, device: Device, wanted: int, what: str, *, clock: Callable[[], float] | None = None) -> None:
        """The version that opens; 0 for a refusal."""
        try:
            found = device.open(wall_clock=clock or self.publisher.clock)[0]
        except PathweaveError as error:
            found, what = 0, f"{what} ({error})"
        self.findings.case(found == wanted, f"{what}: version {found} opens instead of {wanted}")


def try_freshness(trial: Trial, findings: Findings) -> None:
    """A server that withholds, mixes or forges, keys that are replaced, and clocks that jump while a device opens."""
    www = trial.new_folder("released")
    publisher = _Publisher(trial, www / SERVED)
    with FolderServer(www) as server:
        tried = _Tried(publisher, f"http://127.0.0.1:{server.port}/{SERVED}", findings)
        publisher.publish(1)
        device = tried.device()
        tried.opens(device, 1, "the first release")
        _freeze(tried, device)
        _clocks(tried, device)
        _mixed(tried, device)
        _rotation(tried, device)
    findings.note("key lists and releases: freeze, clocks, mixed releases, rotation")


def _freeze(tried: _Tried, device: Device) -> None:
    """The release is withheld beyond its end."""
    tried.publisher.clock.sleep((DAYS + 1) * DAY_S)
    tried.opens(tried.device(), 0, "an expired release, on a new device")
    tried.opens(device, 1, "an expired release, where its version is in use")
    tried.publisher.publish(2)
    tried.opens(device, 2, "a new release after a freeze")


def _clocks(tried: _Tried, device: Device) -> None:
    """Clocks back, far ahead, and jumping during an ``open``."""
    publisher, now_s = tried.publisher, tried.publisher.now_s
    old = (publisher.served / "release.json").read_bytes()
    publisher.clock.sleep((DAYS + 1) * DAY_S)
    publisher.publish(3)
    tried.opens(device, 3, "the next release")
    tried.opens(device, 3, "a clock set back", clock=lambda: now_s)
    publisher.trial.bundle.publish(publisher.served, 2)
    (publisher.served / "release.json").write_bytes(old)
    tried.opens(device, 3, "an expired release, its clock set back", clock=lambda: now_s)
    publisher.publish(3)
    tried.opens(tried.device(), 0, "a clock far ahead, on a new device", clock=lambda: now_s + YEARS_S)
    tried.opens(device, 3, "a clock far ahead", clock=lambda: now_s + YEARS_S)
    steps_s = (YEARS_S, -2 * YEARS_S, YEARS_S) * 20
    tried.opens(device, 3, "a clock that jumps", clock=JumpingClock(steps_s, now_s=publisher.now_s))
    tried.opens(device, 3, "a clock that is right again")


def _mixed(tried: _Tried, device: Device) -> None:
    """The release of one version with the manifest of another."""
    publisher = tried.publisher
    publisher.publish(4)
    release = (publisher.served / "release.json").read_bytes()
    publisher.publish(5)
    (publisher.served / "release.json").write_bytes(release)
    tried.opens(device, 3, "the release of version 4 with version 5")
    publisher.publish(5)
    tried.opens(device, 5, "version 5 with its own release")


def _rotation(tried: _Tried, device: Device) -> None:
    """Release keys, then root keys; a list with too few signatures; lists that are withheld."""
    publisher = tried.publisher
    now_s, days = publisher.now_s, 365.0
    publisher.publish(6)
    old = (publisher.served / "release.json").read_bytes()
    new_key, old_key = publisher.public("release-2"), publisher.public("release-1")
    follow(publisher.lists, add_release=[new_key], remove_release=[old_key], now_s=now_s, days=days)
    publisher.sign("root-1")
    shutil.copy(publisher.lists / "2.draft", publisher.served / "keys" / "2.json")
    tried.opens(device, 5, "a list with half of its signatures")
    publisher.sign("root-2")
    publisher.serve_lists()
    tried.opens(device, 5, "a release by a revoked key")
    shutil.rmtree(publisher.served / "keys")
    tried.opens(device, 5, "a release by a revoked key, the list withheld")
    publisher.publish(7, by="release-2")
    tried.opens(device, 7, "a release by the new key")
    old_root, new_root = publisher.public("root-1"), publisher.public("root-3")
    follow(publisher.lists, add_root=[new_root], remove_root=[old_root], now_s=now_s, days=days)
    publisher.sign("root-1", "root-2", "root-3")
    publisher.publish(8, by="release-2")
    tried.opens(device, 8, "a release under new root keys")
    tried.opens(tried.device(), 8, "all lists in one delivery, on a new device")
    publisher.trial.bundle.publish(publisher.served, 6)
    (publisher.served / "release.json").write_bytes(old)
    tried.opens(device, 8, "an older version by a revoked key")
