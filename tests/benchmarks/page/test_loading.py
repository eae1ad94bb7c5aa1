"""Histories that are loaded at once leave the rows that the same uploads leave at a server."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

pytest.importorskip("flask", reason="needs the extra: pip install 'pathweave[server]'")
pytest.importorskip("sqlalchemy", reason="needs the extra: pip install 'pathweave[server]'")

import sqlalchemy as sa

from benchmarks.page.content import NAME, write_bundles
from benchmarks.page.history import Drawn
from benchmarks.page.loading import Load, load_all
from server.app import create_app
from server.services import Services
from server.settings import Settings
from server.state.database import Database
from server.state.tables import BUNDLE_DEVICES, FLEET_DEVICE_DAYS, FLEET_DEVICES, FLEET_PERIODS, LOG_LINES, RETENTION
from tests.server.engines import MissingEngineError, postgres_process

END = datetime(2026, 5, 21, 12, 30, tzinfo=UTC)
DEVICES, LINES = 6, 16


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def places(request, tmp_path_factory):
    """Makes places for databases."""
    folder = tmp_path_factory.mktemp("databases")
    if request.param == "sqlite":
        yield lambda name: folder / f"{name}.sqlite3"
        return
    try:
        with postgres_process() as (_, postgres):
            yield lambda name: postgres.empty()
    except MissingEngineError as error:
        pytest.skip(str(error))


def rows(location):
    """The rows of all tables that log lines change; the ids of lines are of another order."""
    database, lines = Database(location), LOG_LINES.c
    tables = (FLEET_DEVICES, FLEET_DEVICE_DAYS, FLEET_PERIODS, BUNDLE_DEVICES, RETENTION)
    try:
        with database.reading() as connection:
            found = {table.name: Counter(map(tuple, connection.execute(sa.select(table)))) for table in tables}
            kept = sa.select(lines.device, lines.digest, lines.time, lines.received, lines.event, lines.line)
            return found | {"log_lines": Counter(map(tuple, connection.execute(kept)))}
    finally:
        database.close()


def send(location, bundles, data, devices):
    """Send the same uploads to a server, by its route, in the order of their arrival."""
    uploads = [(upload.received, one.name, upload) for one in devices for upload in one.uploads(LINES)]
    time = [END]
    database = location if isinstance(location, str) else None
    services = Services(Settings(bundles, data, database=database, jobs_at_once=0), now=lambda: time[0])
    try:
        client = create_app(services.settings, services=services).test_client()
        for received, name, upload in sorted(uploads, key=lambda one: one[:2]):
            time[0] = received
            body = b"".join(line + b"\n" for _, line in upload.lines)
            reply = client.post("/v1/logs", data=body, headers={"Pathweave-Device": name})
            assert (reply.status_code, reply.json["accepted"]) == (200, len(upload.lines))
    finally:
        services.close()


def test_a_load_leaves_what_uploads_through_the_route_leave(places, tmp_path):
    (tmp_path / "bundles").mkdir()
    versions = write_bundles(tmp_path / "bundles")
    devices = [Drawn(number, tuple(versions), END) for number in range(DEVICES)]
    sent, loaded = places("sent"), places("loaded")
    send(sent, tmp_path / "bundles", tmp_path / "data", devices)
    if not isinstance(sent, str):
        sent = tmp_path / "data" / "server.sqlite3"
    parts = 2 if isinstance(loaded, str) else 1
    loads = [Load(loaded, range(at, DEVICES, parts), NAME, versions, END, LINES, 3600.0) for at in range(parts)]
    with ThreadPoolExecutor(parts) as executor:
        count = load_all(loads, executor)
    expected, found = rows(sent), rows(loaded)
    assert count == expected["log_lines"].total()
    for table in expected:
        assert found[table] == expected[table], table
    assert len(expected["fleet_devices"]) == DEVICES
    assert {kind for _, _, kind, _ in expected["fleet_device_days"]} >= {"seen", "over_budget", "switch"}
