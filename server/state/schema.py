"""Bringing a database's schema up to date: one Alembic history for SQLite and PostgreSQL, one transaction."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import sqlalchemy as sa

from device_sdk.errors import StorageError

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0006"  # the newest revision; a test holds it to the history
_VERSION = sa.table("alembic_version", sa.column("version_num"))
# Held by the replica that upgrades a PostgreSQL database, while those that start beside it wait.
_UPGRADE_LOCK = 0x70617468_77656176  # "pathweav"


def revision_of(connection: sa.Connection) -> str | None:
    """The revision of a database; None if it has none yet."""
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    found: str | None = connection.execute(sa.select(_VERSION.c.version_num)).scalar()
    return found


def require_not_newer(connection: sa.Connection, *, named: str) -> str | None:
    """The revision of a database (StorageError if it was written by a newer server)."""
    present = revision_of(connection)
    _require_not_newer(connection, present, named)
    return present


def upgrade(connection: sa.Connection, *, named: str) -> None:
    """Bring the schema to ``HEAD``, in the caller's transaction. ``named``: the database, for messages.

    Raises:
        StorageError: it was written by a newer server.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
    present = revision_of(connection)
    if present == HEAD:
        return
    _require_not_newer(connection, present, named)
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _require_not_newer(connection: sa.Connection, present: str | None, named: str) -> None:
    from alembic.script import ScriptDirectory

    known = {one.revision for one in ScriptDirectory.from_config(_config()).walk_revisions()}
    newer = present is not None and present not in known
    if present is None and connection.dialect.name == "sqlite":
        newer = connection.exec_driver_sql("PRAGMA user_version").scalar_one() > 2  # the last one before the history
    if newer:
        raise StorageError(f"{named} was written by a newer server", hint="update Pathweave")


@cache
def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "server.state:migrations")
    config.set_main_option("path_separator", "os")
    return config
