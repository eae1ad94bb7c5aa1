"""Rollouts move to a shared database: a version that was left must not come back there."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from server.moving import TABLES, move_table
from server.rollouts import store
from server.rollouts.decisions import Step
from server.rollouts.evidence import Counts
from server.rollouts.plan import Plan, Stage
from server.rollouts.signals import Member
from server.state.database import Database

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MOVED = [one for one in TABLES if one.table.name in ("bundle_devices", "rollouts", "rollout_devices", "rollout_counts")]
DEVICES = 900  # more than two batches


@pytest.fixture
def source(tmp_path):
    database = Database(tmp_path / "embedded.sqlite3")
    plan = Plan((Stage(percent=100),))
    with database.writing() as connection:
        begun = store.start(
            connection, "tiny", version=2, baseline=1, plan=plan, salt="s", state="running", now=NOW, by="me"
        )
        for number in range(DEVICES):
            bundle = "tiny" if number % 2 else "other"
            store.put_known(
                connection, bundle, f"d{number // 2}", store.Known("a=b", 1, {"latency": 0.5}, "2026-05-01")
            )
            store.put_member(connection, begun.number, f"d{number}", Member(2, 0, tried=True))
        store.add_counts(connection, begun.number, {(2, "", "self_test"): Counts(DEVICES, 3, 0.0, 0.0)})
        assert store.take(connection, begun, Step("reversed", 0, "x"), NOW + timedelta(minutes=1))
    yield database
    database.close()


def test_rollouts_move_with_their_devices_and_counts_and_again_nothing_moves(source, database):
    for again in (False, True):
        reports = {one.table.name: move_table(one, source, database) for one in MOVED}
        rows = {name: report.rows for name, report in reports.items()}
        assert rows == {"bundle_devices": DEVICES, "rollouts": 1, "rollout_devices": DEVICES, "rollout_counts": 1}
        assert all(report.moved == (0 if again else report.rows) for report in reports.values())
        assert not any(report.differing for report in reports.values())
    with database.writing() as connection:
        moved = store.latest(connection, "tiny")
        assert (moved.state, moved.why, moved.revision) == ("reversed", "x", 1)
        assert store.fleet_size(connection, "tiny") == DEVICES // 2
        plan = moved.plan
        begun = store.start(
            connection, "tiny", version=3, baseline=1, plan=plan, salt="s", state="planned", now=NOW, by="me"
        )
        assert begun.number == 2


def test_of_two_that_change_a_rollout_one_does(source):
    with source.writing() as connection:
        read = store.find(connection, 1)
        assert store.take(connection, read, Step("reversed", 0, "y"), NOW)
        assert not store.take(connection, read, Step("done", 0), NOW)
        assert not store.held(connection, replace(read, revision=0))
        assert store.find(connection, 1).why == "y"
