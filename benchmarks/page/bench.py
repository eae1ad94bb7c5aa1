"""Page: every view of the operator's page over 10,000 devices with ten million log lines.

Lines and the aggregates of them are loaded as ``history`` says; of some devices they are counted again from the
stored lines, and must come out the same.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from benchmarks.faults.serving import Serving, serving
from benchmarks.page.content import NAME, add_jobs, add_rollout, add_tokens, write_bundles
from benchmarks.page.history import Drawn
from benchmarks.page.loading import Load, load_all
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from server.access.scopes import Scope
from server.fleet.aggregates import Aggregates
from server.state.database import Database
from server.state.log_store import lock_device
from server.state.tables import FLEET_DEVICE_DAYS, FLEET_DEVICES, FLEET_PERIODS
from tests.server.engines import postgres_process

DEVICES, LINES = 10_000, 50  # devices, and lines of each of their uploads
FEWER = 10  # devices of SQLite are a tenth
QUICK_DEVICES = 200
PROCESSES = 2
LOADING_S = 150.0  # after which no further day of uploads is loaded
_REPEATS, _QUICK_REPEATS = 15, 5
_RECOUNTED = 40  # devices

TARGETS = {
    "worst_median_ms": Target(maximum=200),
    "largest_bytes": Target(maximum=300_000),
    "sqlite_worst_median_ms": Target(maximum=500),
    "recounted_differing": Target(maximum=0),
}


@dataclass(frozen=True)
class Timed:
    """A view on one engine."""

    engine: str
    view: str
    median_ms: float
    worst_ms: float
    size_bytes: int

    def row(self) -> dict[str, object]:
        return {
            "engine": self.engine,
            "view": self.view,
            "median_ms": self.median_ms,
            "worst_ms": self.worst_ms,
            "bytes": self.size_bytes,
        }


@dataclass(frozen=True)
class _Measured:
    views: list[Timed]
    lines: int
    loading_s: float
    differing: int

    @property
    def worst_median_ms(self) -> float:
        return max(one.median_ms for one in self.views)

    @property
    def worst_ms(self) -> float:
        return max(one.worst_ms for one in self.views)


def run(options: BenchOptions) -> BenchOutcome:
    """``worst_median_ms``: of all views, the slowest view's median; ``worst_ms``: the slowest request; ``lines``: of
    logs in the database; ``recounted_differing``: rows of aggregates that differ when devices are counted again.
    """
    devices = QUICK_DEVICES if options.quick else DEVICES
    with postgres_process() as (_, postgres):
        large = _measure(options, "postgresql", postgres.empty(), devices)
    small = _measure(options, "sqlite", options.work_folder / "small.sqlite3", devices // FEWER)
    figures = {
        "worst_median_ms": large.worst_median_ms,
        "worst_ms": large.worst_ms,
        "largest_bytes": float(max(one.size_bytes for one in (*large.views, *small.views))),
        "sqlite_worst_median_ms": small.worst_median_ms,
        "sqlite_worst_ms": small.worst_ms,
        "devices": float(devices),
        "lines": float(large.lines),
        "sqlite_devices": float(devices // FEWER),
        "sqlite_lines": float(small.lines),
        "loading_s": large.loading_s,
        "recounted_differing": float(large.differing + small.differing),
    }
    table = [one.row() for one in (*large.views, *small.views)]
    return BenchOutcome(figures, table, data="made-up devices; the reference bundle of tests/contract")


def _measure(options: BenchOptions, engine: str, location: Path | str, devices: int) -> _Measured:
    """Load one engine and ask for every view, in turns."""
    bundles, now = options.work_folder / f"bundles-{engine}", datetime.now(UTC)
    bundles.mkdir()
    versions = write_bundles(bundles)
    began = time.monotonic()
    parts = PROCESSES if isinstance(location, str) else 1
    loads = [
        Load(location, range(part, devices, parts), NAME, versions, now, LINES, LOADING_S) for part in range(parts)
    ]
    with ProcessPoolExecutor(parts, mp_context=multiprocessing.get_context("spawn")) as executor:
        lines = load_all(loads, executor)
    loading_s = time.monotonic() - began
    names = [Drawn(number, (), now).name for number in range(devices)]
    differing = _differing(location, random.Random(1).sample(names, min(_RECOUNTED, devices)))
    data = options.work_folder / f"data-{engine}"
    with serving(bundles, data, **_settings(location, data)) as server:
        token = server.services.tokens.new("bench", days=1, scope=Scope.ADMIN)
        job_id = add_jobs(server.services, "bench", now)
        add_tokens(server.services, names, now)
        rollout = add_rollout(server.services, names)
        paths = _paths(server, names, list(versions)[-1], job_id, rollout)
        repeats = _QUICK_REPEATS if options.quick else _REPEATS
        views = _timed(server, engine, paths, {"Authorization": f"Bearer {token}"}, repeats)
    return _Measured(views, lines, loading_s, differing)


def _settings(location: Path | str, data: Path) -> dict[str, Any]:
    if isinstance(location, str):
        return {"database": location}
    data.mkdir()
    location.rename(data / "server.sqlite3")
    return {}


def _paths(server: Serving, names: Sequence[str], digest: str, job_id: str, rollout: int) -> dict[str, str]:
    """The address of every view, and of the filters and orders of devices."""
    devices, one = "/page/devices", quote(names[len(names) // 2])
    state = server.services.fleet.device(names[len(names) // 2])
    _, rest = server.services.fleet.lines(state.device, most=50)
    return {
        "overview": "/",
        "overview by day": "/?by=day",
        "devices": devices,
        "devices by latency": f"{devices}?sort=-latency",
        "devices by share asked": f"{devices}?sort=asked",
        "devices over budget": f"{devices}?over=1&sort=-budget",
        "devices by name": f"{devices}?search=99",
        "devices by name, none": f"{devices}?search=nothing",
        "devices of a version": f"{devices}?bundle={digest}",
        "devices with a plan": f"{devices}?plan=escalate&sort=device",
        "devices that failed": f"{devices}?failed=24h&sort=-failed",
        "devices with a failure": f"{devices}?failure=switch",
        "devices not seen": f"{devices}?unseen=7d",
        "one device": f"{devices}/{one}",
        "older lines of a device": f"{devices}/{one}?before={rest}",
        "bundles": "/page/bundles",
        "one bundle": f"/page/bundles/{NAME}",
        "rollouts": "/page/rollouts",
        "one rollout": f"/page/rollouts/{rollout}",
        "jobs": "/page/jobs",
        "one job": f"/page/jobs/{job_id}",
        "tokens": "/page/tokens",
    }


def _timed(
    server: Serving, engine: str, paths: Mapping[str, str], headers: Mapping[str, str], repeats: int
) -> list[Timed]:
    """Ask for all views in turns, ``repeats`` times; the first turn counts too."""
    took: dict[str, list[float]] = {view: [] for view in paths}
    sizes: dict[str, int] = {}
    for _ in range(repeats):
        for view, path in paths.items():
            began = time.perf_counter()
            reply = server.ask(path, headers={**headers, "Accept": "text/html"})
            took[view].append(1000 * (time.perf_counter() - began))
            assert reply.status == 200, (view, reply.status, reply.body[:200])
            sizes[view] = len(reply.body)
    return [Timed(engine, view, statistics.median(ms), max(ms), sizes[view]) for view, ms in took.items()]


def _differing(location: Path | str, devices: Sequence[str]) -> int:
    """Devices whose aggregates differ when they are counted again from their stored lines; all stays as it is."""
    database, found = Database(location), 0
    try:
        for device in devices:
            with database.reading() as connection, connection.begin() as transaction:
                lock_device(connection, device)
                before = _rows(connection, device)
                Aggregates().recount(connection, device)
                found += _rows(connection, device) != before
                transaction.rollback()
    finally:
        database.close()
    return found


def _rows(connection: sa.Connection, device: str) -> list[object]:
    """The rows of a device, and all counters."""
    days, periods = FLEET_DEVICE_DAYS.c, FLEET_PERIODS.c
    queries = (
        sa.select(FLEET_DEVICES).where(FLEET_DEVICES.c.device == device),
        sa.select(FLEET_DEVICE_DAYS).where(days.device == device).order_by(days.day, days.kind),
        sa.select(FLEET_PERIODS).order_by(periods.unit, periods.period, periods.kind, periods.part),
    )
    return [connection.execute(query).all() for query in queries]
