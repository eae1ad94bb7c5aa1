"""Devices that send lines to a database, whose fleet is kept by the observer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from server.fleet.aggregates import Aggregates
from server.fleet.store import FleetStore
from server.state.database import Database
from server.state.log_store import LogStore, check_lines
from server.state.tables import FLEET_DEVICE_DAYS, FLEET_DEVICES, FLEET_PERIODS


@dataclass
class Fleet:
    """A database with log lines and what is kept of them."""

    database: Database
    logs: LogStore
    store: FleetStore
    aggregates: Aggregates
    body: Callable[..., bytes]

    def send(self, device: str, *lines: dict[str, Any]) -> None:
        """Take lines of a device."""
        self.logs.add(device, check_lines(self.body(*lines), max_line_bytes=64_000))

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of the fleet's tables, counters summed over their parts."""
        row = FLEET_PERIODS.c
        summed = sa.select(row.unit, row.period, row.kind, sa.func.sum(row.devices))
        queries = {
            "devices": sa.select(FLEET_DEVICES),
            "days": sa.select(FLEET_DEVICE_DAYS),
            "periods": summed.group_by(row.unit, row.period, row.kind),
        }
        with self.database.reading() as connection:
            return {name: sorted(map(tuple, connection.execute(query).all())) for name, query in queries.items()}

    def forget(self) -> None:
        """Delete what is kept, as if the lines had been stored by an older server."""
        with self.database.writing() as connection:
            for table in (FLEET_DEVICES, FLEET_DEVICE_DAYS, FLEET_PERIODS):
                connection.execute(sa.delete(table))


@pytest.fixture
def new_fleet(new_database, clock, ndjson):
    """Opens the same database as another replica does: ``new_fleet(keep_lines=…)``."""

    def opened(*, keep_lines: int = 1000) -> Fleet:
        database, aggregates = new_database(), Aggregates(now=clock)
        logs = LogStore(database, keep_lines=keep_lines, observers=[aggregates], now=clock)
        return Fleet(database, logs, FleetStore(database), aggregates, ndjson)

    return opened


@pytest.fixture
def fleet(new_fleet):
    """A fleet without devices."""
    return new_fleet()
