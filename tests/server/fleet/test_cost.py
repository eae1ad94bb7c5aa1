"""Rows that views read do not grow with the number of log lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from server.app import create_app
from server.services import Services
from server.settings import Settings
from server.state.log_store import check_lines

VIEWS = (
    "/",
    "/?by=day",
    "/page/devices",
    "/page/devices?sort=-budget",
    "/page/devices?search=ev&over=1",
    "/page/devices/device-0",
    "/page/bundles",
    "/v1/devices",
    "/metrics",
)


@pytest.fixture
def services(tmp_path, location):
    """A server without devices, on each engine."""
    (tmp_path / "bundles").mkdir()
    database = location if isinstance(location, str) else None
    found = Services(Settings(tmp_path / "bundles", tmp_path / "data", database=database, jobs_at_once=0))
    yield found
    found.close()


@pytest.fixture
def fill(services, log_line, ndjson):
    """Has three devices send lines of some minutes."""

    def send(minutes):
        for number in range(3):
            lines = [log_line(minute, "adapted" if minute % 3 else "opened") for minute in minutes]
            services.logs.add(f"device-{number}", check_lines(ndjson(*lines), max_line_bytes=64_000))
        with services.database.writing() as connection:
            connection.exec_driver_sql("ANALYZE")  # as the engine itself does now and then

    return send


@contextmanager
def statements(services) -> Iterator[list[tuple[str, object]]]:
    """The statements that are run meanwhile, with their parameters."""
    engine, found = services.database._engine, []

    def before(connection, cursor, statement, parameters, *_):
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            found.append((statement, parameters))

    sa.event.listen(engine, "before_cursor_execute", before)
    try:
        yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", before)


def asked(services, path):
    """The statements of a view."""
    client = create_app(services.settings, services=services).test_client()
    with statements(services) as found:
        assert client.get(path).status_code == 200
    return found


def lines_read(services, found):
    """Log lines that PostgreSQL reads, or steps of SQLite's machine in hundreds."""
    with services.database.reading() as connection:
        if connection.dialect.name == "sqlite":
            return sum(_steps(connection, statement, parameters) for statement, parameters in found)
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        return sum(_rows(connection, statement, parameters) for statement, parameters in found)


def _steps(connection, statement, parameters):
    steps = [0]

    def count():
        steps[0] += 1

    raw = connection.connection.dbapi_connection
    raw.set_progress_handler(count, 100)
    try:
        connection.exec_driver_sql(statement, parameters).all()
    finally:
        raw.set_progress_handler(None, 0)
    return steps[0]


def _rows(connection, statement, parameters):
    plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar_one()
    [top] = json.loads(plan) if isinstance(plan, str) else plan
    nodes, rows = [top["Plan"]], 0
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if node.get("Relation Name") == "log_lines":
            rows += node["Actual Rows"] * node["Actual Loops"] + node.get("Rows Removed by Filter", 0)
    return rows


def test_views_read_as_much_with_ten_times_the_lines(services, fill):
    fill(range(150))
    before = {path: asked(services, path) for path in VIEWS}
    read = {path: lines_read(services, found) for path, found in before.items()}
    fill(range(150, 1440))
    after = {path: asked(services, path) for path in VIEWS}
    assert {path: len(found) for path, found in after.items()} == {path: len(found) for path, found in before.items()}
    for path, found in after.items():
        assert lines_read(services, found) <= 1.3 * read[path] + 5, path


def test_views_take_few_statements(services, fill):
    fill(range(20))
    assert max(len(asked(services, path)) for path in VIEWS) <= 14
