"""The schema that SQLite files had before there was a history. Such files are taken over as they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None

# SQLite files kept the version of their schema in user_version; 2 was the last. A server of that time refuses more.
_LAST_LEGACY = 2
_NOT_LEGACY = _LAST_LEGACY + 1

# In version 1 every token could do everything but manage tokens. Existing ones keep that.
_FROM_VERSION_1 = """
ALTER TABLE tokens ADD COLUMN scope TEXT NOT NULL DEFAULT 'device';
ALTER TABLE tokens ADD COLUMN device TEXT;
UPDATE tokens SET scope = 'operator';
UPDATE log_lines SET time = received WHERE time > received;
CREATE TABLE enrolment_codes (
    hash BLOB PRIMARY KEY, device TEXT, days REAL NOT NULL, created TEXT NOT NULL, expires TEXT NOT NULL, used TEXT
) STRICT;
CREATE TABLE dropped_lines (
    number INTEGER PRIMARY KEY, device TEXT NOT NULL, digest BLOB NOT NULL, UNIQUE (device, digest)
) STRICT;
CREATE TABLE retention (device TEXT PRIMARY KEY, dropped INTEGER NOT NULL) STRICT;
ALTER TABLE jobs ADD COLUMN published_name TEXT;
ALTER TABLE jobs ADD COLUMN published_version INTEGER;
ALTER TABLE jobs ADD COLUMN published_by TEXT;
ALTER TABLE jobs ADD COLUMN published TEXT;
UPDATE jobs SET published_name = json_extract(CAST(request AS TEXT), '$.name'), published_version = version,
    published_by = client, published = finished WHERE state = 'done';
CREATE INDEX log_lines_by_arrival ON log_lines (device, id)
"""

_number: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_real: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL, "sqlite")


def upgrade() -> None:
    """Take over a SQLite file of an earlier server, or make all tables."""
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    legacy = connection.exec_driver_sql("PRAGMA user_version").scalar_one() if is_sqlite else 0
    if legacy == 1:
        for statement in _FROM_VERSION_1.split(";\n"):
            connection.exec_driver_sql(statement)
    elif not legacy:
        _create()
    if is_sqlite:
        connection.exec_driver_sql(f"PRAGMA user_version = {_NOT_LEGACY}")


def _table(name: str, *parts: sa.schema.SchemaItem) -> None:
    op.create_table(name, *parts, sqlite_strict=True)


def _create() -> None:
    _create_access()
    _create_logs()
    _create_jobs()


def _create_access() -> None:
    _table(
        "tokens",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("expires", sa.Text, nullable=False),
        sa.Column("revoked", sa.Integer, nullable=False, server_default="0"),
        sa.Column("scope", sa.Text, nullable=False, server_default="device"),
        sa.Column("device", sa.Text),
    )
    _table(
        "enrolment_codes",
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("device", sa.Text),
        sa.Column("days", _real, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("expires", sa.Text, nullable=False),
        sa.Column("used", sa.Text),
    )


def _create_logs() -> None:
    _table(
        "log_lines",
        sa.Column("id", _number, primary_key=True),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("received", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("line", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("device", "digest"),
    )
    op.create_index("log_lines_by_device", "log_lines", ["device", "event", "time"])
    op.create_index("log_lines_by_time", "log_lines", ["time"])
    op.create_index("log_lines_by_arrival", "log_lines", ["device", "id"])
    _table(
        "dropped_lines",
        sa.Column("number", _number, primary_key=True),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("device", "digest"),
    )
    _table(
        "retention",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("dropped", _number, nullable=False),
    )


def _create_jobs() -> None:
    texts = ("worker", "digest", "error", "hint")
    published = (sa.Column("published_name", sa.Text), sa.Column("published_version", sa.Integer))
    _table(
        "jobs",
        sa.Column("number", _number, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("client", sa.Text, nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("weights_sha256", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("version", sa.Integer),
        *(sa.Column(name, sa.Text) for name in texts),
        sa.Column("created", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text) for name in ("started", "finished")),
        *published,
        *(sa.Column(name, sa.Text) for name in ("published_by", "published")),
    )
