from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest

from device_sdk.errors import StorageError
from server.access.scopes import Client, Scope
from server.access.tokens import TokenStore, hash_of
from server.jobs.store import JobStore
from server.state.database import _MIGRATIONS, Database
from server.state.log_store import LogStore, check_lines


def count(database):
    with database.reading() as connection:
        return connection.execute("SELECT count(*) FROM tokens").fetchone()[0]


def insert(connection, name):
    connection.execute("INSERT INTO tokens (name, hash, created, expires) VALUES (?, ?, '', '')", (name, name.encode()))


def test_it_makes_its_folder_and_finds_its_contents_again(tmp_path):
    path = tmp_path / "a" / "b" / "x.sqlite3"
    with Database(path).writing() as connection:
        insert(connection, "one")
    assert count(Database(path)) == 1
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0


def test_a_transaction_counts_whole_or_not_at_all(tmp_path):
    database = Database(tmp_path / "x.sqlite3")
    with database.writing() as connection:
        insert(connection, "one")

    def twice():
        with database.writing() as connection:
            insert(connection, "two")
            insert(connection, "one")

    with pytest.raises(StorageError):
        twice()
    assert count(database) == 1


def test_a_connection_is_used_again_and_not_after_an_error(tmp_path):
    database = Database(tmp_path / "x.sqlite3")
    with database.reading() as first:
        pass
    with database.reading() as second, database.reading() as beside:
        assert second is first
        assert beside is not first
    with pytest.raises(KeyError), database.reading() as failed:
        raise KeyError
    with database.reading() as later:
        assert later is not failed
    database.close()
    assert count(database) == 0


def test_what_another_process_writes_is_seen(tmp_path):
    database = Database(tmp_path / "x.sqlite3")
    assert count(database) == 0
    with closing(sqlite3.connect(tmp_path / "x.sqlite3")) as other:
        insert(other, "one")
        other.commit()
    assert count(database) == 1


def test_a_file_that_replaces_the_database_is_what_is_read(tmp_path):
    database = Database(tmp_path / "x.sqlite3")
    with Database(tmp_path / "other.sqlite3").writing() as connection:
        insert(connection, "one")
    assert count(database) == 0
    with closing(sqlite3.connect(tmp_path / "other.sqlite3")) as other:
        other.execute("PRAGMA wal_checkpoint")
    (tmp_path / "other.sqlite3").replace(tmp_path / "x.sqlite3")
    assert count(database) == 1


def test_writers_wait_for_each_other(tmp_path):
    database = Database(tmp_path / "x.sqlite3")

    def write(which):
        for number in range(20):
            with database.writing() as connection:
                insert(connection, f"{which}-{number}")

    threads = [threading.Thread(target=write, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(database) == 80


def test_what_is_no_database_is_a_storage_error(tmp_path):
    (tmp_path / "x.sqlite3").write_bytes(b"no database, but long enough to be read as one" * 100)
    with pytest.raises(StorageError) as caught:
        Database(tmp_path / "x.sqlite3")
    assert caught.value.hint


def test_a_file_in_place_of_the_folder_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        Database(tmp_path / "file" / "x.sqlite3")


def test_a_database_of_the_first_schema_keeps_its_tokens_lines_and_jobs(tmp_path, clock, log_line, ndjson):
    path = tmp_path / "x.sqlite3"
    [line] = check_lines(ndjson(log_line(1)), max_line_bytes=64_000)
    received = "2026-04-01T00:00:00.000+00:00"
    request = b'{"name":"digits","model":"zoo:x","data":"d","validation":"v","recipe":{}}'
    rows = {
        "tokens (name, hash, created, expires)": ("laptop", hash_of("pw_old"), received, "2026-06-01T00:00:00+00:00"),
        "log_lines (device, digest, time, received, event, line)": (
            *("pi", line.digest, "9999-01-01T00:00:00.000+00:00", received, "opened"),
            line.encoded(),
        ),
        "jobs (id, client, request, state, version, digest, created, finished)": (
            *("1", "laptop", request, "done", 4, "ff"),
            *(received, received),
        ),
    }
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_MIGRATIONS[0])
        connection.execute("PRAGMA user_version = 1")
        for table, row in rows.items():
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        connection.commit()
    database = Database(path)
    assert TokenStore(database, now=clock).owner("pw_old") == Client("laptop", Scope.OPERATOR)
    logs = LogStore(database, keep_lines=5, now=clock)
    assert [stored.time for stored in logs.latest(9)] == [received]
    assert logs.add("pi", [line]).duplicates == 1
    job = JobStore(database).find("1")
    assert (job.published_name, job.published_version, job.published) == ("digits", 4, received)
    Database(path)  # nothing is migrated twice


def test_a_database_of_a_newer_server_is_left_alone(tmp_path):
    path = tmp_path / "x.sqlite3"
    Database(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageError, match="newer"):
        Database(path)
