"""Moving an embedded server's state to a database and an object store that servers share.

Repeatable: what is there already is compared, not written again, so a move that was cut short goes on.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from device_sdk.errors import StorageError
from server.fleet.aggregates import Aggregates
from server.fleet.filling import count_again, devices_with_lines
from server.state.database import Database, insert
from server.state.folder_bundles import FolderBundles
from server.state.object_bundles import ObjectBundles
from server.state.tables import (
    BUNDLE_DEVICES,
    DROPPED_LINES,
    ENROLMENT_CODES,
    JOBS,
    LOG_LINES,
    RETENTION,
    ROLLOUT_COUNTS,
    ROLLOUT_DEVICES,
    ROLLOUTS,
    TOKENS,
)

_ROWS_AT_ONCE = 400


@dataclass(frozen=True)
class _Moved:
    """A table that moves: rows are read in the order of ``by`` and told apart by ``keys``.

    A column of ``by`` that is not among them is made anew.
    """

    table: sa.Table
    by: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def columns(self) -> list[sa.Column[Any]]:
        return [column for column in self.table.c if column.name not in self.by or column.name in self.keys]


TABLES = (
    _Moved(TOKENS, ("name",), ("name",)),
    _Moved(ENROLMENT_CODES, ("hash",), ("hash",)),
    _Moved(RETENTION, ("device",), ("device",)),
    _Moved(DROPPED_LINES, ("number",), ("device", "digest")),
    _Moved(LOG_LINES, ("id",), ("device", "digest")),
    _Moved(JOBS, ("number",), ("id",)),
    *(
        _Moved(table, keys, keys)
        for table in (BUNDLE_DEVICES, ROLLOUTS, ROLLOUT_DEVICES, ROLLOUT_COUNTS)
        for keys in (tuple(column.name for column in table.primary_key),)
    ),
)
_OVER = JOBS.c.state.in_(("done", "failed", "cancelled"))


@dataclass(frozen=True)
class TableReport:
    """``rows``: in the source; ``moved``: of them now; ``differing``: in the target with other contents, left alone."""

    table: str
    rows: int
    moved: int
    differing: int


@dataclass(frozen=True)
class BundleReport:
    """A version; ``size_bytes`` were read back and verified, 0 in a dry run."""

    name: str
    version: int
    size_bytes: int


@contextlib.contextmanager
def copied_database(path: Path) -> Iterator[Database]:
    """A consistent copy of a server's file, with the newest schema; the file itself is only read.

    Raises:
        StorageError: there is none, or it cannot be read.
    """
    if not path.exists():
        raise StorageError(
            f"there is no database {path}", hint="--data names the folder if it is not in the served one"
        )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        try:
            with (
                contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        database = Database(copy)
        try:
            yield database
        finally:
            database.close()


def unfinished_jobs(source: Database) -> int:
    """The number of jobs that wait or run; they stay behind."""
    with source.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).where(sa.not_(_OVER))).scalar_one())


def move_table(moved: _Moved, source: Database, target: Database | None) -> TableReport:
    """Copy the rows that the target lacks, and compare all. Without a target, count them.

    Raises:
        StorageError: a database is away, or rows did not arrive.
    """
    rows = new = differing = 0
    for batch in _batches(moved, source):
        rows += len(batch)
        if target is None:
            continue
        with target.writing() as connection:
            fresh = _not_dropped(connection, moved, batch)
            if fresh:
                added = insert(connection, moved.table).values(fresh).on_conflict_do_nothing()
                returned = added.returning(*(moved.table.c[key] for key in moved.keys))
                new += len(connection.execute(returned).all())
            differing += _compare(connection, moved, fresh)
    return TableReport(moved.table.name, rows, new, differing)


def count_devices(source: Database, target: Database) -> None:
    """Have the target count the devices whose lines came from the source.

    Raises:
        StorageError: a database is away.
    """
    for device in devices_with_lines(source):
        count_again(target, Aggregates(), device)


def move_bundles(folder: Path, target: ObjectBundles | None) -> Iterator[BundleReport]:
    """Publish every version that a folder serves with its release and the key lists, and verify what arrived.

    Without a target, only list them.

    Raises:
        StorageError: the store is away. PublishError: it has another bundle as that version. BlobError: damaged.
    """
    if target is not None:
        target.add_key_lists(folder)
    for name, versions in sorted(FolderBundles(folder).listing().bundles.items()):
        for one in reversed(versions):
            size = 0
            if target is not None:
                target.publish(one.bundle.folder, name=name, version=one.version)
                size = target.verify(name, one.version)
            yield BundleReport(name, one.version, size)


def _batches(moved: _Moved, source: Database) -> Iterator[list[dict[str, Any]]]:
    by, last = [moved.table.c[name] for name in moved.by], None
    while True:
        shown = (column.label(f"_{column.name}") for column in by)
        query = sa.select(*shown, *moved.columns).order_by(*by).limit(_ROWS_AT_ONCE)
        if moved.table is JOBS:
            query = query.where(_OVER)
        with source.reading() as connection:
            after = query if last is None else query.where(sa.tuple_(*by) > sa.tuple_(*map(sa.literal, last)))
            found = connection.execute(after).all()
        if not found:
            return
        last = found[-1][: len(by)]
        names = [column.name for column in moved.columns]
        yield [dict(zip(names, row[len(by) :], strict=True)) for row in found]


def _not_dropped(connection: sa.Connection, moved: _Moved, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the log lines that the target has dropped since."""
    if moved.table is not LOG_LINES:
        return batch
    pairs = [(row["device"], row["digest"]) for row in batch]
    gone = DROPPED_LINES.c
    query = sa.select(gone.device, gone.digest).where(sa.tuple_(gone.device, gone.digest).in_(pairs))
    dropped = {(device, bytes(digest)) for device, digest in connection.execute(query)}
    return [row for row in batch if (row["device"], row["digest"]) not in dropped]


def _compare(connection: sa.Connection, moved: _Moved, rows: Sequence[dict[str, Any]]) -> int:
    """Read the rows back; returns how many have other contents (StorageError if one is missing)."""
    if not rows:
        return 0
    keys = [moved.table.c[key] for key in moved.keys]
    wanted = [tuple(row[key] for key in moved.keys) for row in rows]
    query = sa.select(*moved.columns).where(sa.tuple_(*keys).in_(wanted))
    found = {tuple(row[key] for key in moved.keys): dict(row) for row in connection.execute(query).mappings()}
    missing = [key for key in wanted if key not in found]
    if missing:
        raise StorageError(
            f"{len(missing)} rows of {moved.table.name} did not arrive", hint="run the same command again"
        )
    return sum(found[key] != row for key, row in zip(wanted, rows, strict=True))
