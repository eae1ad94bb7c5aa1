"""Fleet: rollouts to thousands of devices that halt by themselves, while servers are killed, upgraded and restarted.

Packaging jobs run beside the devices, on two machines of which one is killed with a job in the middle.
Devices run the SDK's delivery, store, log and upload in a few processes, against three servers on PostgreSQL and an S3
server behind a balancer. A release fails its self-test on 5 % of them, another is 30 % slower on a quarter's board.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from benchmarks.fleet.devices import NAME, Device, Polled, poll_all
from benchmarks.fleet.packaging import Yard, running_yard
from benchmarks.fleet.site import Site, running_site
from benchmarks.fleet.sizes import Sizes, sizes_of
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import CHECKOUT
from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.releasing import sign_rollback
from device_sdk.signing import signatures
from server.asking import ask_server
from server.state.database import Database
from server.state.tables import LOG_LINES

TARGETS = {
    "halted_at_share_self_test": Target(maximum=0.03),
    "halted_at_share_slow": Target(maximum=0.03),
    "back_within_polls": Target(maximum=1),
    "wrong_version": Target(maximum=0),
    "errors": Target(maximum=0),
    "lost_lines": Target(maximum=0),
    "failed_in_upgrade": Target(maximum=0),
    "lost_jobs": Target(maximum=0),
    "repeated_jobs": Target(maximum=0),
    "torn": Target(maximum=0),
    "jobs_moved": Target(minimum=1),
}
_REFERENCE = CHECKOUT / "tests" / "contract" / "bundle"
DEVICES, QUICK_DEVICES = 2_000, 120
JOBS, QUICK_JOBS = 4, 2
SERVERS, PROCESSES = 3, 2
ROUND_PARTS = 40  # of a round, after each of which the rollout is looked at
_FAILING, _SLOW_BOARDS, _SLOWER = 0.05, 0.25, 1.3
_FIRST, _FAULTY, _SLOW = 1, 2, 3  # versions
_MOST_ROUNDS = 4
_SEEN_S = 5.0  # servers look at the store every two seconds
_STAGES, _QUICK_STAGES = (1, 3, 10, 100), (10, 30, 100)  # percent; each ends once half of its devices have reported


@dataclass
class _Fleet:
    """The devices, and everything that they met."""

    site: Site
    devices: Sequence[Device]
    key: Path
    executor: Executor
    draw: random.Random
    polled: dict[int, Polled] = field(default_factory=dict)  # the latest of each device
    had: dict[int, set[int]] = field(default_factory=dict)  # versions that each has run
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def round(self) -> Iterator[None]:
        """Every device polls once, in a drawn order; pauses after each part."""
        order = list(range(len(self.devices)))
        self.draw.shuffle(order)
        size = max(PROCESSES, -(-len(order) // ROUND_PARTS))
        for first in range(0, len(order), size):
            part = order[first : first + size]
            began = time.perf_counter()
            shares = [part[number::PROCESSES] for number in range(PROCESSES)]
            jobs = [
                self.executor.submit(poll_all, [self.devices[at] for at in share], self.site.url, self.key)
                for share in shares
            ]
            for share, job in zip(shares, jobs, strict=True):
                for at, found in zip(share, job.result(), strict=True):
                    self.polled[at] = found
                    self.had.setdefault(at, set()).add(found.version)
                    if found.failure is not None:
                        self.errors.append(found.failure)
                    if found.known is None:
                        self.errors.append("a log could not be sent")
            self.seconds.append((time.perf_counter() - began) / len(part))
            yield

    def whole_round(self) -> None:
        """Every device polls once."""
        for _ in self.round():
            pass

    def running(self, version: int) -> int:
        """Devices on a version, by their latest poll."""
        return sum(one.version == version for one in self.polled.values())


def run(options: BenchOptions) -> BenchOutcome:
    """``halted_at_share_*``: of the fleet that ran the release before it was halted; ``back_within_polls``: until all
    of these run the first version again; ``wrong_version``: devices on another one after that; ``errors``: deliveries
    and uploads that failed, also while a server and PostgreSQL were killed; ``failed_in_upgrade``: of a round in which
    the servers are replaced one by one; ``lost_lines``: of logs on devices that no server has, or has twice.
    ``lost_jobs``: accepted ones that are neither published nor failed for a reason; ``repeated_jobs``: published
    versions beyond one for each; ``torn``: versions and blobs in the store that do not verify; ``jobs_moved``: done on
    a machine after another one had begun.
    """
    count = QUICK_DEVICES if options.quick else DEVICES
    with running_site(options.work_folder / "site", count=SERVERS) as (site, database), _workers() as executor:
        key = options.work_folder / "key.pub"
        empty = sizes_of(database)
        versions = published_versions(options.work_folder, key)
        site.publish(versions[_FIRST])
        time.sleep(_SEEN_S)
        fleet = _Fleet(site, _devices(options.work_folder / "devices", count), key, executor, random.Random(1))
        fleet.whole_round()
        first_s = sum(fleet.seconds) / len(fleet.seconds)
        fetched = [one.bytes_fetched for one in fleet.polled.values()]
        faulty = _rolled_out(fleet, versions[_FAULTY], _FAULTY)
        slow = _rolled_out(fleet, versions[_SLOW], _SLOW)
        troubled, job_rows = _troubled(fleet, options.work_folder / "yard", database, quick=options.quick)
        requests = site.requests()
        lost = _lost_lines(fleet, database)
        requests = (site.requests() - requests) / count
        sizes = sizes_of(database)
    figures = {
        "halted_at_share_self_test": faulty.share,
        "halted_at_share_slow": slow.share,
        "back_within_polls": float(max(faulty.back_within, slow.back_within)),
        "wrong_version": float(faulty.wrong + slow.wrong),
        "errors": float(len(fleet.errors)),
        "lost_lines": float(lost),
        **troubled,
        "devices": float(count),
        "first_install_bytes": sum(fetched) / len(fetched),
        "first_install_s_per_device": first_s,
        "poll_s_per_device": sum(fleet.seconds[-ROUND_PARTS:]) / ROUND_PARTS,
        "requests_per_poll": requests,
        **_sizes_told(empty, sizes, count),
    }
    table: list[dict[str, object]] = [faulty.row("fails its self-test on 5 %"), slow.row("30 % slower on a quarter")]
    table += job_rows
    table += [{"what": "error", "text": text} for text in dict.fromkeys(fleet.errors)]
    return BenchOutcome(figures, table, data="made-up devices; the reference bundle of tests/contract")


def _troubled(
    fleet: _Fleet, folder: Path, database: str, *, quick: bool
) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Faults, then an upgrade, while jobs run; figures, and a row for each job."""
    with running_yard(fleet.site, folder, database=database, store=fleet.site.store) as yard:
        yard.submit(QUICK_JOBS if quick else JOBS)
        _with_faults(fleet, yard)
        before = len(fleet.errors)
        _upgraded(fleet, yard)
        upgrade_errors = len(fleet.errors) - before
        yard.finish()
        jobs, moved, rows = yard.counted(), yard.moved(), yard.rows()
    figures = {
        "failed_in_upgrade": float(upgrade_errors),
        "lost_jobs": float(jobs.lost),
        "repeated_jobs": float(jobs.repeated),
        "torn": float(jobs.torn),
        "jobs_moved": float(moved),
        "jobs": float(len(rows)),
    }
    return figures, rows


def _sizes_told(empty: Sizes, sizes: Sizes, devices: int) -> dict[str, float]:
    """Bytes of the database, without and with the fleet."""
    return {
        "log_lines": float(sizes.lines),
        "database_bytes_per_device": sizes.database_bytes / devices,
        "empty_database_bytes": float(empty.database_bytes),
        "bytes_per_device": (sizes.other_bytes - empty.other_bytes) / devices,
        "overhead_bytes_per_line": sizes.overhead_bytes_per_line,
    }


@dataclass(frozen=True)
class _Outcome:
    share: float
    back_within: int
    wrong: int
    why: str
    rounds: float

    def row(self, what: str) -> dict[str, object]:
        return {"what": what, "share": self.share, "rounds": self.rounds, "why": self.why}


def _rolled_out(fleet: _Fleet, folder: Path, version: int) -> _Outcome:
    """Roll a version out until it is halted, then until all are back."""
    url = fleet.site.url
    started = ask_server(
        "POST",
        url,
        "/v1/rollouts",
        dict[str, object],
        {"bundle": NAME, "version": version, "baseline": _FIRST, "plan": _plan(len(fleet.devices))},
        what="the rollout",
    )
    number = started["number"]
    fleet.site.publish(folder)
    time.sleep(_SEEN_S)
    parts, why, halted, report = 0, "never halted", False, started
    for _ in range(_MOST_ROUNDS):
        for _ in fleet.round():
            parts += 1
            report = ask_server("GET", url, f"/v1/rollouts/{number}", dict[str, object], what="the rollout")
            halted = report["state"] in ("reversing", "reversed")
            if halted or report["state"] == "done":
                why = str(report["why"]) or "never halted"
                break
        if halted or report["state"] == "done":
            break
    if not halted:
        ask_server("POST", url, f"/v1/rollouts/{number}/reverse", dict[str, object], what="the rollout")
        halted = True
    share = sum(version in had for had in fleet.had.values()) / len(fleet.devices)
    rounds = 0
    while halted and rounds < _MOST_ROUNDS:
        rounds += 1
        fleet.whole_round()
        if not fleet.running(version):
            break
    wrong = len(fleet.polled) - fleet.running(_FIRST)
    return _Outcome(share, rounds, wrong, why, parts / ROUND_PARTS)


def _plan(devices: int) -> dict[str, object]:
    """Stages that last until half of their devices have tried the version."""
    return {
        "stages": [
            {"percent": percent, "hold_minutes": 0, "min_devices": max(1, percent * devices // 200)}
            for percent in (_STAGES if devices >= DEVICES else _QUICK_STAGES)
        ]
    }


def _with_faults(fleet: _Fleet, yard: Yard) -> None:
    """A round in which a server is killed and started again, then PostgreSQL, and a machine that packages is killed."""
    for part, _ in enumerate(fleet.round()):
        yard.look()
        if part == ROUND_PARTS // 4:
            fleet.site.kill(0)
        if part == ROUND_PARTS // 2:
            fleet.site.start(0)
            fleet.site.restart_database()


def _upgraded(fleet: _Fleet, yard: Yard) -> None:
    """A round in which each server is drained and started again."""
    steps = {ROUND_PARTS * (number + 1) // (fleet.site.count + 1): number for number in range(fleet.site.count)}
    for part, _ in enumerate(fleet.round()):
        yard.look()
        if part in steps:
            fleet.site.drain(steps[part])
            fleet.site.start(steps[part])


def _lost_lines(fleet: _Fleet, database: str) -> int:
    """Differences between the lines on devices and those at the servers, device by device."""
    fleet.whole_round()
    own: dict[str, int] = {}
    for at, device in enumerate(fleet.devices):
        logs = device.folder.rglob("adaptation.jsonl")
        own[fleet.polled[at].device] = sum(len(path.read_bytes().splitlines()) for path in logs)
    opened = Database(database)
    try:
        with opened.reading() as connection:
            query = sa.select(LOG_LINES.c.device, sa.func.count()).group_by(LOG_LINES.c.device)
            there: dict[str, int] = dict(connection.execute(query).all())
    finally:
        opened.close()
    return sum(abs(count - there.get(name, 0)) for name, count in own.items())


def _devices(folder: Path, count: int) -> list[Device]:
    """The fleet, drawn once and for all."""
    draw = random.Random(0)
    found = []
    for number in range(count):
        slow_board = draw.random() < _SLOW_BOARDS
        fails = frozenset({_FAULTY}) if draw.random() < _FAILING else frozenset[int]()
        slower = ((_SLOW, _SLOWER),) if slow_board else ()
        board = "b" if slow_board else "a"
        found.append(Device(folder / str(number), board, draw.lognormvariate(2.0, 0.5), fails, slower))
    return found


def published_versions(folder: Path, public: Path) -> dict[int, Path]:
    """A folder for each version, signed; with the first a way back from all others."""
    private = folder / "key"
    for path, data in zip((private, public), signatures.new_key_pair(), strict=True):
        path.write_bytes(data)
    found = {}
    for version in (_FIRST, _FAULTY, _SLOW):
        place = folder / f"published-{version}" / f"{NAME}-{version}"
        shutil.copytree(_REFERENCE, place)
        manifest = json.loads((place / "manifest.json").read_bytes()) | {"version": version}
        data = json.dumps(manifest).encode()
        (place / "manifest.json").write_bytes(data)
        (place / "manifest.sig").write_bytes(signatures.sign(data, private_key=private))
        Bundle.open(place).verify()
        found[version] = place.parent
    now_s = int(time.time())
    sign_rollback(found[_FIRST] / f"{NAME}-{_FIRST}", None, private, from_version=_SLOW, now_s=now_s, days=1)
    return found


@contextmanager
def _workers() -> Iterator[Executor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor
