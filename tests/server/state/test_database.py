from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
import sqlalchemy as sa

from device_sdk.errors import StorageError, UsageError
from server.state.database import Database, parsed_url, shown
from server.state.tables import TOKENS


def count(database):
    with database.reading() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(TOKENS)).scalar_one()


def insert(connection, name):
    row = {"name": name, "hash": name.encode(), "created": "", "expires": "", "scope": "device"}
    connection.execute(sa.insert(TOKENS), row)


def insert_with_sqlite(path, name):
    with closing(sqlite3.connect(path)) as other:
        other.execute("INSERT INTO tokens (name, hash, created, expires) VALUES (?, ?, '', '')", (name, name.encode()))
        other.commit()


def test_it_finds_its_contents_again(new_database):
    with new_database().writing() as connection:
        insert(connection, "one")
    assert count(new_database()) == 1


def test_it_makes_its_folder_for_its_user_alone(tmp_path):
    Database(tmp_path / "a" / "b" / "x.sqlite3")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0


def test_a_transaction_counts_whole_or_not_at_all(database):
    with database.writing() as connection:
        insert(connection, "one")

    def twice():
        with database.writing() as connection:
            insert(connection, "two")
            insert(connection, "one")

    with pytest.raises(StorageError):
        twice()
    assert count(database) == 1


def test_connections_are_used_again_also_after_an_error(database):
    def fail():
        with database.writing() as connection:
            insert(connection, "one")
            raise KeyError

    for _ in range(40):
        with pytest.raises(KeyError):
            fail()
    assert count(database) == 0
    database.close()
    assert count(database) == 0


def test_what_another_process_writes_is_seen(tmp_path):
    database = Database(tmp_path / "x.sqlite3")
    assert count(database) == 0
    insert_with_sqlite(tmp_path / "x.sqlite3", "one")
    assert count(database) == 1


def test_a_file_that_replaces_the_database_is_what_is_read(tmp_path):
    database = Database(tmp_path / "x.sqlite3")
    other = Database(tmp_path / "other.sqlite3")
    with other.writing() as connection:
        insert(connection, "one")
    other.close()
    assert count(database) == 0
    for suffix in ("-wal", "-shm"):  # of the old file
        (tmp_path / f"x.sqlite3{suffix}").unlink()
    (tmp_path / "other.sqlite3").replace(tmp_path / "x.sqlite3")
    assert count(database) == 1


def test_writers_do_not_lose_what_others_write(new_database):
    database = new_database()

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


@pytest.mark.parametrize(
    "text",
    ["", "secret", "mysql://u:secret@h/d", "sqlite:///secret", "postgresql://u:secret@h:port/d", "http://secret"],
)
def test_only_postgresql_has_a_url_and_a_wrong_one_is_not_repeated(text):
    with pytest.raises(UsageError) as caught:
        parsed_url(text)
    assert "secret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_the_schemes_of_postgresql(scheme):
    url = parsed_url(f"{scheme}://me:secret@h/d")
    assert url.drivername == "postgresql+psycopg"
    assert shown(url) == "postgresql+psycopg://me:***@h/d"


def test_a_password_in_the_query_is_not_shown_either():
    assert shown(parsed_url("postgresql://me@h/d?password=secret&sslmode=require")).endswith("?sslmode=require")


def test_a_postgresql_that_is_away_is_a_storage_error_without_the_password(tmp_path):
    pytest.importorskip("psycopg", reason="needs the extra: pip install 'pathweave[fleet]'")
    with pytest.raises(StorageError) as caught:
        Database(f"postgresql://me:secret@/d?host={tmp_path}")
    assert "secret" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def test_connections_that_postgresql_ended_are_replaced(postgres):
    database = Database(postgres.new())
    assert count(database) == 0
    postgres.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pathweave'"
        f" AND datname = '{database.name.partition('@/')[2].partition('?')[0]}'"
    )
    assert count(database) == 0
    database.close()
