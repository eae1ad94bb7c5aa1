"""The server's SQLite file: tokens, log lines and jobs. Each use opens a connection, so threads share none."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from device_sdk.errors import StorageError

SCHEMA_VERSION = 1
_BUSY_TIMEOUT_S = 10.0

_SCHEMA = """
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
"""


class Database:
    """The SQLite file at ``path``, created with its folder if missing.

    Raises:
        StorageError: it cannot be created or read, or has a newer version. All methods raise it too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
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
        """A connection that is closed afterwards."""
        try:
            with contextlib.closing(self._connect()) as connection:
                yield connection
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

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StorageError(f"{self._path} was written by a newer server", hint="update Pathweave")
        for statement in _SCHEMA.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


_HINT = "free some space, or choose another folder with --data"
