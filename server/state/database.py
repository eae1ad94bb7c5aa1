"""The server's database: tokens, enrolment codes, log lines and jobs, in a SQLite file or in PostgreSQL.

Each use has a connection of its own, so threads share none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from device_sdk.errors import StorageError, UsageError
from device_sdk.extras import require
from server.state.schema import upgrade

_BUSY_TIMEOUT_S = 10.0
_IDLE_CONNECTIONS = 4  # that stay open
_SERVER_CONNECTIONS = 16  # of one replica; more requests wait
_SERVER_PATIENCE_S = 10  # for a connection, a statement or a lock
_WRITES = "pathweave_writes"

POSTGRESQL = "postgresql"
_SCHEMES = ("postgresql", "postgres")
_SECRETS = ("password", "sslpassword")  # in the query of a URL


def utc_now() -> datetime:
    """The clock of the server."""
    return datetime.now(UTC)


class Database:
    """The SQLite file at ``location``, created with its folder if missing, or the PostgreSQL database at that URL.

    Its schema is brought up to date, unless ``upgraded`` is false. ``name``: for people, without a password.

    Raises:
        StorageError: it cannot be created, reached or read, or has a newer version. All methods raise it too.
        UsageError: not the URL of a PostgreSQL database. MissingExtraError: its driver is not installed.
    """

    def __init__(self, location: Path | str, *, upgraded: bool = True) -> None:
        if isinstance(location, Path):
            self.name, self._hint = str(location), "free some space, or choose another folder with --data"
            _make_folder(location.parent, self._hint)
            self._engine = _sqlite(location)
        else:
            url = parsed_url(location)
            self.name = shown(url)
            self._hint = "see that PostgreSQL runs and that --database names it"
            self._engine = _postgresql(url)
        if upgraded:
            with self.writing() as connection:
                upgrade(connection, named=self.name)

    @property
    def is_shared(self) -> bool:
        """True if other machines may use it at the same time."""
        return self._engine.dialect.name == POSTGRESQL

    def check(self) -> None:
        """Raise StorageError unless the database answers."""
        with self.reading() as connection:
            connection.execute(sa.select(1))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for one thread; read its rows to the end in here. Some stay open: opening one takes 0.5 ms."""
        with self._connected(writes=False) as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A connection in a transaction, which is rolled back on an exception.

        On SQLite writers take turns. On PostgreSQL they run beside each other: what must not change meanwhile is
        locked by row, and what must be there once has a unique key.
        """
        with self._connected(writes=True) as connection, connection.begin():
            yield connection

    def close(self) -> None:
        """Close the connections that are kept open; new ones are opened when needed."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _connected(self, *, writes: bool) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection.execution_options(**{_WRITES: writes})
        except DBAPIError as error:
            raise StorageError(f"cannot use {self.name}: {_first_line(error.orig)}", hint=self._hint) from error
        except PoolTimeoutError as error:
            raise StorageError(f"all connections to {self.name} are in use", hint=self._hint) from error
        except SQLAlchemyError as error:
            raise StorageError(f"cannot use {self.name}: {_first_line(error)}", hint=self._hint) from error


def insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert:
    """An insert that may say what it does on a conflict; both engines take the same."""
    made = postgresql.insert(table) if connection.dialect.name == POSTGRESQL else sqlite.insert(table)
    return cast("sqlite.Insert", made)


def parsed_url(text: str) -> sa.URL:
    """The URL of a PostgreSQL database, for our driver.

    Raises:
        UsageError: it is none. Its text is not repeated: it may hold a password.
    """
    try:
        url = sa.make_url(text)
        known = url.drivername.partition("+")[0] in _SCHEMES
    except (SQLAlchemyError, ValueError):
        known = False
    if not known:
        raise UsageError("--database is no URL of a database", hint="write postgresql://USER:PASSWORD@HOST/DATABASE")
    return url.set(drivername="postgresql+psycopg")


def shown(url: sa.URL) -> str:
    """A URL for people, without passwords."""
    return url.difference_update_query(_SECRETS).render_as_string(hide_password=True)


def _make_folder(folder: Path, hint: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"cannot create {folder}: {error.strerror}", hint=hint) from error


def _sqlite(path: Path) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        pool_size=_IDLE_CONNECTIONS,
        max_overflow=-1,
        # One thread at a time has a connection, but not always the same.
        connect_args={"timeout": _BUSY_TIMEOUT_S, "isolation_level": None, "check_same_thread": False},
    )

    @sa.event.listens_for(engine, "connect")
    def opened(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        record.info["file"] = _identity(path)

    @sa.event.listens_for(engine, "checkout")
    def used(connection: Any, record: Any, proxy: Any) -> None:
        if record.info["file"] != _identity(path):
            raise DisconnectionError("the file was replaced")  # the pool opens another

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # Writers wait for each other here: a reader that becomes a writer could not.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file, which tell it from one that replaces it; None if it is absent."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _postgresql(url: sa.URL) -> sa.Engine:
    require("psycopg", extra="fleet")
    waits_ms = 1000 * _SERVER_PATIENCE_S
    return sa.create_engine(
        url,
        pool_size=_IDLE_CONNECTIONS,
        max_overflow=_SERVER_CONNECTIONS - _IDLE_CONNECTIONS,
        pool_timeout=_SERVER_PATIENCE_S,
        pool_pre_ping=True,  # after PostgreSQL was restarted, the first request succeeds
        connect_args={
            "connect_timeout": _SERVER_PATIENCE_S // 2,
            "application_name": "pathweave",
            "client_encoding": "utf8",  # also of a database that has none
            "options": f"-c statement_timeout={waits_ms} -c lock_timeout={waits_ms}",
            "tcp_user_timeout": waits_ms,
        },
    )


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or ["it failed"])[0]
