"""Servers whose PostgreSQL or object store goes away and comes back."""

from __future__ import annotations

import json

import pytest

from server.settings import Settings
from tests.server.conftest import _run
from tests.server.engines import MissingEngineError, postgres_process


@pytest.fixture
def own_postgres():
    """A PostgreSQL that the test may stop."""
    try:
        with postgres_process() as started:
            yield started
    except MissingEngineError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_while_postgresql_is_away_logs_are_refused_and_inference_goes_on(
    own_postgres, tiny, tmp_path, log_line, ndjson
):
    process, postgres = own_postgres
    settings = Settings(tiny.folder.parent, tmp_path / "data", database=postgres.empty(), jobs_at_once=0)
    running = _run(settings, None, 5.0, None)
    try:
        token = running.services.tokens.new("pi", days=1)
        headers = {"Authorization": f"Bearer {token}", "Pathweave-Device": "pi-1"}
        image = {"name": "image", "datatype": "UINT8", "shape": [1, 20, 20, 3], "data": [7] * 1200}
        body = json.dumps({"inputs": [image]}).encode()

        def send(*minutes):
            lines = ndjson(*(log_line(minute) for minute in minutes))
            return running.ask("/v1/logs", method="POST", body=lines, headers=headers)

        def infer():
            return running.ask("/v2/models/tiny:images/infer", method="POST", body=body, headers=headers).status

        assert send(1).json()["accepted"] == 1
        assert infer() == 200
        process.stop()
        refused = send(1, 2)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert infer() == 200
        ready = running.ask("/ready")
        assert (ready.status, ready.json()["database"], ready.json()["bundles"]) == (503, "away", "ok")
        assert running.ask("/health").status == 200
        process.start()
        assert send(1, 2).json() == {"accepted": 1, "duplicates": 1, "dropped": 0}
    finally:
        running.stop()


def test_a_server_that_is_ready_says_so_without_a_token(server):
    assert server.ask("/ready").json() == {"ready": True, "database": "ok", "bundles": "ok"}
