"""The server's SQLite file: tokens, enrolment codes, log lines and jobs.

Each use opens a connection, so threads share none.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from device_sdk.errors import StorageError

_BUSY_TIMEOUT_S = 10.0
_IDLE_CONNECTIONS = 4  # that stay open

# The statements that lead from each version of the schema to the next. Released ones never change.
_MIGRATIONS = (
    """
CREATE TABLE IF NOT EXISTS tokens (
    name TEXT PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,     -- sha256 of the token, which is not stored
    created TEXT NOT NULL,
    expires TEXT NOT NULL,
    revoked INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS log_lines (
    id INTEGER PRIMARY KEY,
    device TEXT NOT NULL,
    digest BLOB NOT NULL,          -- sha256 of the line as received
    time TEXT NOT NULL,            -- timestamp of the line, in UTC
    received TEXT NOT NULL,
    event TEXT NOT NULL,
    line BLOB NOT NULL,
    UNIQUE (device, digest)
) STRICT;
CREATE INDEX IF NOT EXISTS log_lines_by_device ON log_lines (device, event, time);
CREATE INDEX IF NOT EXISTS log_lines_by_time ON log_lines (time);
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY,    -- order of arrival
    id TEXT NOT NULL UNIQUE,
    client TEXT NOT NULL,
    request BLOB NOT NULL,         -- JSON, checked
    weights_sha256 TEXT,
    state TEXT NOT NULL,
    version INTEGER,               -- of the bundle, set at the first start
    worker TEXT,                   -- pid and start time of its process, while it runs
    digest TEXT,                   -- of the manifest, set just before publishing
    error TEXT,
    hint TEXT,
    created TEXT NOT NULL,
    started TEXT,
    finished TEXT
) STRICT;
""",
    # Until this version every token could do everything but manage tokens. Existing ones keep that.
    """
ALTER TABLE tokens ADD COLUMN scope TEXT NOT NULL DEFAULT 'device';
-- The device whose log lines it may send. NULL: not bound.
ALTER TABLE tokens ADD COLUMN device TEXT;
UPDATE tokens SET scope = 'operator';
UPDATE log_lines SET time = received WHERE time > received;
CREATE TABLE enrolment_codes (
    hash BLOB PRIMARY KEY,         -- sha256 of the code, which is not stored
    device TEXT,                   -- the device that it enrols; NULL: any new one
    days REAL NOT NULL,            -- validity of the token
    created TEXT NOT NULL,
    expires TEXT NOT NULL,
    used TEXT                      -- when it was exchanged
) STRICT;
CREATE TABLE dropped_lines (
    number INTEGER PRIMARY KEY,    -- order of arrival
    device TEXT NOT NULL,
    digest BLOB NOT NULL,
    UNIQUE (device, digest)
) STRICT;
CREATE TABLE retention (
    device TEXT PRIMARY KEY,
    dropped INTEGER NOT NULL       -- lines that retention has dropped
) STRICT;
ALTER TABLE jobs ADD COLUMN published_name TEXT;
ALTER TABLE jobs ADD COLUMN published_version INTEGER;
ALTER TABLE jobs ADD COLUMN published_by TEXT;
-- When. The three columns above are set just before.
ALTER TABLE jobs ADD COLUMN published TEXT;
UPDATE jobs SET published_name = json_extract(CAST(request AS TEXT), '$.name'), published_version = version,
    published_by = client, published = finished WHERE state = 'done';
CREATE INDEX log_lines_by_arrival ON log_lines (device, id);
""",
)
SCHEMA_VERSION = len(_MIGRATIONS)


def utc_now() -> datetime:
    """The clock of the server."""
    return datetime.now(UTC)


class Database:
    """The SQLite file at ``path``, created with its folder if missing.

    Raises:
        StorageError: it cannot be created or read, or has a newer version. All methods raise it too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[tuple[sqlite3.Connection, tuple[int, int] | None]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"cannot create {path.parent}: {error.strerror}", hint=_HINT) from error
        with self.reading() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        with self.writing() as connection:
            self._prepare(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for one thread; read its rows to the end in here. Some stay open: opening one takes 0.5 ms."""
        try:
            connection = self._idle_connection() or self._connect()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._keep(connection)
        except sqlite3.Error as error:
            raise StorageError(f"cannot use {self._path}: {error}", hint=_HINT) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction, which is rolled back on an exception."""
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def close(self) -> None:
        """Close the connections that are kept open; new ones are opened when needed."""
        while (connection := self._idle_connection()) is not None:
            connection.close()

    def _idle_connection(self) -> sqlite3.Connection | None:
        """One that was kept, unless the file was replaced since."""
        file = self._file()
        while True:
            try:
                connection, opened = self._idle.pop()
            except IndexError:
                return None
            if opened == file:
                return connection
            connection.close()

    def _keep(self, connection: sqlite3.Connection) -> None:
        if len(self._idle) < _IDLE_CONNECTIONS and not connection.in_transaction:
            self._idle.append((connection, self._file()))
        else:
            connection.close()

    def _file(self) -> tuple[int, int] | None:
        """Device and inode of the file, which tell it from one that replaces it; None if it is absent."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _connect(self) -> sqlite3.Connection:
        # One thread at a time has it, but not always the same.
        return sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StorageError(f"{self._path} was written by a newer server", hint="update Pathweave")
        for migration in _MIGRATIONS[version:]:
            for statement in migration.split(";\n"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


_HINT = "free some space, or choose another folder with --data"
