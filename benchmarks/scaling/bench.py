"""Scaling: a day of a hundredth of a million devices in minutes, against what docs/scaling.md predicts from `fleet`.

Each device polls once and sends 20 lines, with the SDK's delivery, store, log and upload, to two servers on PostgreSQL
and an S3 server. The devices are copies of one that had installed the bundle on the day before.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.fleet.bench import published_versions
from benchmarks.fleet.devices import Device, Polled, poll_all
from benchmarks.fleet.site import Site, running_site
from benchmarks.fleet.sizes import Prices, Sizes, rows_of, sizes_of
from benchmarks.runner.run import BenchOptions, BenchOutcome, BenchResult, Target
from benchmarks.support.bundles import CHECKOUT
from device_sdk.errors import DataError

DEVICES, QUICK_DEVICES = 10_000, 300
LINES = 20  # of a device in a day
SERVERS, PROCESSES = 2, 2
_OWN_LINES = 3  # of a poll: opened, delivered, profiled
_SEEN_S = 5.0
_FLEET = CHECKOUT / "benchmarks" / "results" / "fleet.json"

_WITHIN = Target(minimum=0.9, maximum=1.1)
TARGETS = {
    "requests_predicted_over_measured": _WITHIN,
    "rows_predicted_over_measured": _WITHIN,
    "bytes_predicted_over_measured": _WITHIN,
    "errors": Target(maximum=0),
}


@dataclass(frozen=True)
class _Day:
    devices: int
    requests: float
    not_modified: float
    sizes: Sizes
    errors: Sequence[str]
    seconds: float


def run(options: BenchOptions) -> BenchOutcome:
    """``*_predicted_over_measured``: figures of the result of ``fleet``, scaled, over those measured here;
    ``not_modified_share``: of requests that were answered with 304.

    Raises:
        DataError: there is no result of ``fleet``.
    """
    predicted_requests, prices = _predictions(_FLEET)
    day = _measure(options, QUICK_DEVICES if options.quick else DEVICES)
    sizes, devices = day.sizes, day.devices
    rows = rows_of(devices=devices, days=1, lines=devices * LINES)
    size = prices.database_bytes(devices=devices, lines=devices * LINES, text_bytes=sizes.text_bytes)
    figures = {
        "requests_predicted_over_measured": predicted_requests * devices / day.requests,
        "rows_predicted_over_measured": rows / sizes.rows,
        "bytes_predicted_over_measured": size / sizes.database_bytes,
        "errors": float(len(day.errors)),
        "devices": float(devices),
        "lines": float(sizes.lines),
        "requests_per_device": day.requests / devices,
        "not_modified_share": day.not_modified / day.requests,
        "rows_per_device": sizes.rows / devices,
        "database_bytes_per_device": sizes.database_bytes / devices,
        "text_bytes_per_line": sizes.text_bytes / sizes.lines,
        "log_bytes_per_device": sizes.log_bytes / devices,
        "day_s": day.seconds,
    }
    table: list[dict[str, object]] = [{"what": "error", "text": text} for text in dict.fromkeys(day.errors)]
    return BenchOutcome(figures, table, data="made-up devices; the reference bundle of tests/contract")


def _predictions(path: Path) -> tuple[float, Prices]:
    """Requests of a poll, and bytes, as ``fleet`` measured them."""
    try:
        figures = msgspec.json.decode(path.read_bytes(), type=BenchResult).figures
        found = [figures[name] for name in ("empty_database_bytes", "bytes_per_device", "overhead_bytes_per_line")]
        return float(figures["requests_per_poll"] or 0.0), Prices(*(float(one or 0.0) for one in found))
    except (OSError, msgspec.DecodeError, KeyError) as error:
        raise DataError(f"{path} has no prediction: {error}", hint="run python -m benchmarks fleet first") from error


def _measure(options: BenchOptions, devices: int) -> _Day:
    """1. a device installs the bundle; 2. the day of its copies, and what the servers have of all."""
    key = options.work_folder / "key.pub"
    with (
        running_site(options.work_folder / "site", count=SERVERS) as (site, database),
        ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as executor,
    ):
        site.publish(published_versions(options.work_folder, key)[1])
        time.sleep(_SEEN_S)
        first = Device(options.work_folder / "first", "a", 8.0)
        [installed] = poll_all([first], site.url, key)
        if installed.failure is not None or installed.known is None:
            raise DataError(f"the bundle could not be installed: {installed.failure}")
        fleet = _copies(first, options.work_folder / "devices", devices)
        before, began = _requests(site), time.monotonic()
        shares = [fleet[at::PROCESSES] for at in range(PROCESSES)]
        polled: list[Polled] = []
        for one in [executor.submit(poll_all, share, site.url, key) for share in shares]:
            polled += one.result()
        seconds, after = time.monotonic() - began, _requests(site)
        sizes = sizes_of(database)
    errors = [one.failure or "a log could not be sent" for one in polled if one.failure or one.known is None]
    return _Day(devices, after[0] - before[0], after[1] - before[1], sizes, errors, seconds)


def _requests(site: Site) -> tuple[float, float]:
    """Requests answered so far, and of them those that were not modified."""
    return site.requests(), site.requests(status=304)


def _copies(first: Device, folder: Path, count: int) -> list[Device]:
    """Devices with the bundle of another one, and nothing else of it."""
    draw, found = random.Random(0), []
    for number in range(count):
        place = folder / str(number)
        shutil.copytree(
            first.folder, place, copy_function=os.link, ignore=shutil.ignore_patterns("device", "adaptation.jsonl*")
        )
        found.append(Device(place, "a", draw.lognormvariate(2.0, 0.5), choices=LINES - _OWN_LINES))
    return found
