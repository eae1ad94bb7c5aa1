"""Loads histories into a server's database at once: lines by COPY, indexes afterwards, aggregates beside them."""

from __future__ import annotations

import hashlib
import random
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from benchmarks.page.history import UPLOADS, Drawn, History, Upload
from server.fleet.aggregates import part_of
from server.state.database import POSTGRESQL, Database
from server.state.tables import (
    BUNDLE_DEVICES,
    FLEET_DEVICE_DAYS,
    FLEET_DEVICES,
    FLEET_PERIODS,
    LOG_LINES,
    RETENTION,
)

_COLUMNS = ("device", "digest", "time", "received", "event", "line")
_COPY_HEAD, _COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_FIELDS = struct.pack(">h", len(_COLUMNS))
_DIGEST_BYTES = struct.pack(">i", 32)
_ROWS_AT_ONCE = 1000

Counters = Counter[tuple[str, str, str, int]]


@dataclass(frozen=True)
class Load:
    """Devices to load. ``location``: of the database; ``versions``: by the digests that devices run, the oldest first.

    ``lines``: of an upload; ``end``: of all histories; ``seconds``: no further day of uploads is begun after them.
    """

    location: Path | str
    numbers: Sequence[int]
    bundle: str
    versions: Mapping[str, int]
    end: datetime
    lines: int
    seconds: float


def load_all(loads: Sequence[Load], executor: Executor) -> int:
    """Load devices in several processes; the number of lines. The database has no other rows in these tables."""
    location = loads[0].location
    database = Database(location)
    try:
        with _without_indexes(database):
            parts = list(executor.map(load_part, loads))
        periods = sum((counters for _, counters in parts), Counters())
        rows = [
            {"unit": unit, "period": period, "kind": kind, "part": part, "devices": devices}
            for (unit, period, kind, part), devices in periods.items()
        ]
        with database.writing() as connection:
            _insert(connection, FLEET_PERIODS, rows)
        _analyse(database)
    finally:
        database.close()
    return sum(lines for lines, _ in parts)


def load_part(load: Load) -> tuple[int, Counters]:
    """Load some devices; the number of lines, and the counters to add up."""
    devices = [Drawn(number, tuple(load.versions), load.end) for number in load.numbers]
    histories = {one.name: History(one.name, dict(load.versions)) for one in devices}
    uploads = _in_order_of_arrival(devices, load.lines, time.monotonic() + load.seconds)

    def taken() -> Iterator[tuple[str, Upload]]:
        for name, upload in uploads:
            histories[name].take(upload)
            yield name, upload

    database = Database(load.location, upgraded=False)
    try:
        with database.writing() as connection:
            _patiently(connection)
            store = _copy if connection.dialect.name == POSTGRESQL else _insert_lines
            store(connection.connection.driver_connection, taken())
            counters = _store_aggregates(connection, load.bundle, list(histories.values()))
    finally:
        database.close()
    return sum(one.state.lines for one in histories.values() if one.state is not None), counters


def _in_order_of_arrival(devices: Sequence[Drawn], lines: int, end_s: float) -> Iterator[tuple[str, Upload]]:
    """The uploads of all devices, day by day, until ``end_s``."""
    waiting, draw = [(one.name, one.uploads(lines)) for one in devices], random.Random(0)
    for day in range(UPLOADS):
        if day and time.monotonic() > end_s:
            return
        draw.shuffle(waiting)
        for name, uploads in waiting:
            upload = next(uploads, None)
            if upload is not None:
                yield name, upload


def _copy(raw: Any, uploads: Iterable[tuple[str, Upload]]) -> None:
    """Store lines by PostgreSQL's binary COPY."""
    with (
        raw.cursor() as cursor,
        cursor.copy(f"COPY log_lines ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT binary)") as to,
    ):
        to.write(_COPY_HEAD)
        for name, upload in uploads:
            device, received = _field(name), _field(_moment(upload.received))
            to.write(
                b"".join(
                    part
                    for (at, line), event in zip(upload.lines, upload.events, strict=True)
                    for part in (
                        _FIELDS + device,
                        _DIGEST_BYTES + hashlib.sha256(line).digest(),
                        _field(at) + received + _field(event),
                        struct.pack(">i", len(line)) + line,
                    )
                )
            )
        to.write(_COPY_END)


def _insert_lines(raw: Any, uploads: Iterable[tuple[str, Upload]]) -> None:
    """Store lines in SQLite."""
    marks = ", ".join("?" * len(_COLUMNS))
    raw.executemany(
        f"INSERT INTO log_lines ({', '.join(_COLUMNS)}) VALUES ({marks})",
        (
            (name, hashlib.sha256(line).digest(), at, _moment(upload.received), event, line)
            for name, upload in uploads
            for (at, line), event in zip(upload.lines, upload.events, strict=True)
        ),
    )


def _store_aggregates(connection: sa.Connection, bundle: str, histories: Sequence[History]) -> Counters:
    """Store what is kept of some devices, but the counters that devices share, which are returned."""
    counters: Counters = Counter()
    for one in histories:
        counters.update((*period, part_of(one.device)) for period in one.periods())
    _insert(connection, RETENTION, [{"device": one.device, "dropped": 0} for one in histories])
    _insert(connection, FLEET_DEVICES, [asdict(one.state) for one in histories if one.state is not None])
    days = [
        {"device": one.device, "day": day, "kind": kind, "hours": hours}
        for one in histories
        for (day, kind), hours in one.hours.items()
    ]
    _insert(connection, FLEET_DEVICE_DAYS, days)
    known = [
        {
            **{"bundle": bundle, "device": one.device, "tags": one.known.tags, "version": one.known.version},
            **{"measured": msgspec.json.encode(one.known.measured), "seen": one.known.seen},
        }
        for one in histories
    ]
    _insert(connection, BUNDLE_DEVICES, known)
    return counters


def _insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        connection.execute(sa.insert(table), [dict(row) for row in rows[start : start + _ROWS_AT_ONCE]])


@contextmanager
def _without_indexes(database: Database) -> Iterator[None]:
    """Make the indexes of log lines afterwards, at once."""
    table, made = LOG_LINES.name, []
    with database.writing() as connection:
        _patiently(connection)
        for index in LOG_LINES.indexes:
            index.drop(connection)
        if connection.dialect.name == POSTGRESQL:
            found = sa.inspect(connection)
            keys = [("PRIMARY KEY", found.get_pk_constraint(table)["name"], ["id"])]
            keys += [("UNIQUE", one["name"], one["column_names"]) for one in found.get_unique_constraints(table)]
            for kind, name, columns in keys:
                connection.exec_driver_sql(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
                made.append(f'ALTER TABLE {table} ADD CONSTRAINT "{name}" {kind} ({", ".join(columns)})')
    yield
    with database.writing() as connection:
        _patiently(connection)
        if connection.dialect.name == POSTGRESQL:
            connection.exec_driver_sql("SET LOCAL maintenance_work_mem = '1GB'")
        for statement in made:
            connection.exec_driver_sql(statement)
        for index in LOG_LINES.indexes:
            index.create(connection)


def _patiently(connection: sa.Connection) -> None:
    if connection.dialect.name == POSTGRESQL:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")


def _analyse(database: Database) -> None:
    """As the engine itself does after many changes."""
    with database.reading() as connection:
        is_shared = connection.dialect.name == POSTGRESQL
        plain = connection.execution_options(isolation_level="AUTOCOMMIT") if is_shared else connection
        if is_shared:
            plain.exec_driver_sql("SET statement_timeout = 0")
        plain.exec_driver_sql("VACUUM ANALYZE" if is_shared else "ANALYZE")


def _field(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">i", len(data)) + data


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
