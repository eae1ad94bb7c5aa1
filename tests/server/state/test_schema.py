"""The history of the schema, from the first SQLite files on."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from device_sdk.errors import StorageError
from server.access.scopes import Client, Scope
from server.access.tokens import TokenStore, hash_of
from server.jobs.store import JobStore
from server.state.database import Database, insert
from server.state.log_store import LogStore, check_lines
from server.state.schema import HEAD, _config, revision_of, upgrade
from server.state.tables import BUNDLE_DEVICES, METADATA

FIRST_SCHEMA = """
CREATE TABLE tokens (
    name TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, created TEXT NOT NULL, expires TEXT NOT NULL,
    revoked INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE log_lines (
    id INTEGER PRIMARY KEY, device TEXT NOT NULL, digest BLOB NOT NULL, time TEXT NOT NULL, received TEXT NOT NULL,
    event TEXT NOT NULL, line BLOB NOT NULL, UNIQUE (device, digest)
) STRICT;
CREATE INDEX log_lines_by_device ON log_lines (device, event, time);
CREATE INDEX log_lines_by_time ON log_lines (time);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, client TEXT NOT NULL, request BLOB NOT NULL,
    weights_sha256 TEXT, state TEXT NOT NULL, version INTEGER, worker TEXT, digest TEXT, error TEXT, hint TEXT,
    created TEXT NOT NULL, started TEXT, finished TEXT
) STRICT;
"""
SECOND_SCHEMA = """
ALTER TABLE tokens ADD COLUMN scope TEXT NOT NULL DEFAULT 'device';
ALTER TABLE tokens ADD COLUMN device TEXT;
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
CREATE INDEX log_lines_by_arrival ON log_lines (device, id);
"""
RECEIVED = "2026-04-01T00:00:00.000+00:00"
REQUEST = b'{"name":"digits","model":"zoo:x","data":"d","validation":"v","recipe":{}}'


@pytest.fixture
def line(log_line, ndjson):
    [checked] = check_lines(ndjson(log_line(1)), max_line_bytes=64_000)
    return checked


@pytest.fixture
def legacy(tmp_path, line):
    """Makes a file as a server of the first or second schema left it, with a token, a line and a job."""

    def make(version):
        path = tmp_path / "x.sqlite3"
        rows = {
            "tokens (name, hash, created, expires)": (
                "laptop",
                hash_of("pw_old"),
                RECEIVED,
                "2026-06-01T00:00:00+00:00",
            ),
            "log_lines (device, digest, time, received, event, line)": (
                *("pi", line.digest, "9999-01-01T00:00:00.000+00:00", RECEIVED, "opened"),
                line.encoded(),
            ),
            "jobs (id, client, request, state, version, digest, created, finished)": (
                *("1", "laptop", REQUEST, "done", 4, "ff"),
                *(RECEIVED, RECEIVED),
            ),
        }
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(FIRST_SCHEMA + (SECOND_SCHEMA if version == 2 else ""))
            connection.execute(f"PRAGMA user_version = {version}")
            for table, row in rows.items():
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            connection.commit()
        return path

    return make


def dump(path):
    """All that is in a file, and its version."""
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump(), connection.execute("PRAGMA user_version").fetchone()]


def columns(path):
    """The columns of each table, and its indexes."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        indexes = connection.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        of_tables = {
            table: {
                (name, kind, bool(needed or key), key)
                for _, name, kind, needed, _, key in connection.execute(f"PRAGMA table_info({table})")
            }
            for table in tables
        }
        return of_tables, sorted(indexes.fetchall())


def test_a_database_of_the_first_schema_keeps_its_tokens_lines_and_jobs(legacy, clock, line):
    database = Database(path := legacy(1))
    assert TokenStore(database, now=clock).owner("pw_old") == Client("laptop", Scope.OPERATOR)
    logs = LogStore(database, keep_lines=5, now=clock)
    assert [stored.time for stored in logs.latest(9)] == [RECEIVED]
    assert logs.add("pi", [line]).duplicates == 1
    job = JobStore(database).find("1")
    assert (job.published_name, job.published_version, job.published) == ("digits", 4, RECEIVED)
    before = dump(path)
    Database(path)  # nothing is migrated twice
    assert dump(path) == before


def test_a_database_of_the_second_schema_is_taken_over_as_it_is(legacy, clock):
    path = legacy(2)
    before = [entry for entry in dump(path) if isinstance(entry, str) and entry.startswith("INSERT")]
    database = Database(path)
    after = [entry for entry in dump(path) if isinstance(entry, str) and entry.startswith("INSERT")]
    after = [entry for entry in after if "alembic" not in entry]
    assert len(after) == len(before)
    assert all(now.startswith(then.removesuffix(");")) for now, then in zip(after, before, strict=True))  # new columns
    assert TokenStore(database, now=clock).owner("pw_old") == Client("laptop", Scope.DEVICE)


@pytest.mark.parametrize("version", [1, 2])
def test_an_upgraded_file_has_the_tables_of_a_new_one(legacy, tmp_path, version):
    Database(legacy(version))
    Database(tmp_path / "new.sqlite3")
    assert columns(tmp_path / "x.sqlite3") == columns(tmp_path / "new.sqlite3")


def test_the_history_leads_to_the_tables_in_use(database):
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_the_head_is_the_newest_revision():
    assert ScriptDirectory.from_config(_config()).get_heads() == [HEAD]


def test_a_server_before_the_history_refuses_a_file_with_one(tmp_path):
    Database(tmp_path / "x.sqlite3")
    with closing(sqlite3.connect(tmp_path / "x.sqlite3")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] > 2


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 99", "UPDATE alembic_version SET version_num = '99'"])
def test_a_file_of_a_newer_server_is_left_alone(tmp_path, statement):
    path = tmp_path / "x.sqlite3"
    Database(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        if "PRAGMA" in statement:
            connection.execute("DROP TABLE alembic_version")
        connection.commit()
    before = dump(path)
    with pytest.raises(StorageError, match="newer"):
        Database(path)
    assert dump(path) == before


def test_a_postgresql_of_a_newer_server_is_left_alone(postgres):
    database = Database(url := postgres.new())
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '99'")
    database.close()
    with pytest.raises(StorageError, match="newer"):
        Database(url)


def at_revision(engine, revision):
    """Bring an empty database to a revision of before, as its server left it."""
    with engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


KNOWN = {
    "bundle": "digits",
    "device": "pi",
    "tags": "",
    "version": 4,
    "measured": b'{"latency":0.5}',
    "seen": "2026-05-01",
}
KNOWN_DEVICES = sa.table("known_devices", *(sa.column(name) for name in KNOWN))


@pytest.fixture
def engine_of_before(location):
    """An engine of a database that is still empty, with its address."""
    if isinstance(location, str):
        with sa.create_engine(location.replace("postgresql:", "postgresql+psycopg:")).begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        return sa.create_engine(location.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool), location
    location.parent.mkdir(parents=True)
    return sa.create_engine(f"sqlite:///{location}", poolclass=sa.NullPool), location


@pytest.mark.parametrize("revision", ["0003", "0004", "0005"])
def test_devices_of_bundles_keep_their_rows_from_every_revision_that_has_them(engine_of_before, revision):
    engine, location = engine_of_before
    at_revision(engine, revision)
    with engine.begin() as connection:
        connection.execute(sa.insert(KNOWN_DEVICES), KNOWN)
    database = Database(location)
    with database.reading() as connection:
        assert connection.execute(sa.select(BUNDLE_DEVICES)).mappings().all() == [KNOWN]
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    database.close()


@pytest.mark.parametrize("revision", ["0003", "0005"])
def test_an_upgrade_from_a_revision_that_is_cut_anywhere_leaves_it(engine_of_before, revision):
    engine, location = engine_of_before
    at_revision(engine, revision)
    with engine.begin() as connection:
        connection.execute(sa.insert(KNOWN_DEVICES), KNOWN)
    cuts = 0
    while upgrade_cut_after(engine, cuts):
        with engine.connect() as connection:
            assert revision_of(connection) == revision
            assert connection.execute(sa.select(KNOWN_DEVICES)).mappings().all() == [KNOWN]
            assert not sa.inspect(connection).has_table("bundle_devices")
        cuts += 1
    assert cuts > 2
    Database(location).close()


def test_a_server_of_before_goes_on_writing_devices_of_bundles_until_it_is_replaced(postgres):
    url = postgres.empty()
    at_revision(sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:")), "0005")
    before, now = Database(url, upgraded=False), Database(url)
    for version in (4, 5):
        with before.writing() as connection:  # as its statement was
            row = {**KNOWN, "version": version}
            added = insert(connection, KNOWN_DEVICES).values(row)
            connection.execute(
                added.on_conflict_do_update(index_elements=["bundle", "device"], set_={"version": version})
            )
    with before.reading() as connection:
        assert connection.execute(sa.select(KNOWN_DEVICES.c.version)).scalars().all() == [5]
    with now.reading() as connection:
        assert connection.execute(sa.select(BUNDLE_DEVICES.c.version)).scalars().all() == [5]
    before.close()
    now.close()


class Cut(Exception):
    """The server ends in the middle of an upgrade."""


def upgrade_cut_after(engine, statements):
    """Run the upgrade and end it before the statement of this number; True if it was cut."""
    left = [statements]

    def before(connection, cursor, statement, *_):
        if left[0] == 0:
            raise Cut
        left[0] -= 1

    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.connection.dbapi_connection.isolation_level = None
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        sa.event.listen(engine, "before_cursor_execute", before)
        try:
            upgrade(connection, named="x")
        except Cut:
            connection.connection.dbapi_connection.rollback()
            return True
        finally:
            sa.event.remove(engine, "before_cursor_execute", before)
            connection.invalidate()
    return False


@pytest.mark.parametrize("version", [1, 2])
def test_an_upgrade_of_a_file_that_is_cut_anywhere_leaves_the_old_state(legacy, clock, version):
    path, cuts = legacy(version), 0
    before, engine = dump(path), sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    while upgrade_cut_after(engine, cuts):
        assert dump(path) == before
        cuts += 1
    assert cuts > 5
    TokenStore(Database(path), now=clock).owner("pw_old")


def test_an_upgrade_of_a_postgresql_that_is_cut_anywhere_leaves_the_old_state(postgres):
    url, cuts = postgres.empty(), 0
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    while upgrade_cut_after(engine, cuts):
        with engine.connect() as connection:
            assert sa.inspect(connection).get_table_names() == []
        cuts += 1
    assert cuts > 10
    Database(url).close()


def test_replicas_that_start_at_once_upgrade_once(postgres):
    url, failures = postgres.empty(), []

    def start():
        try:
            Database(url).close()
        except StorageError as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
