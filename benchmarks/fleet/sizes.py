"""Rows and bytes of a server's database on PostgreSQL, and how many a fleet is predicted to take."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from server.state.database import Database
from server.state.tables import LOG_LINES, METADATA

ROWS_PER_DEVICE = 3  # what is known of it for the page, for rollouts, and of its retention
ROWS_PER_DEVICE_DAY = 1  # the hours of a day at which it was seen


@dataclass(frozen=True)
class Sizes:
    """``rows``: of all tables; ``text_bytes``: of log lines as JSON; ``log_bytes``, ``other_bytes``: of the table of
    log lines and of all others, with their indexes; ``database_bytes``: everything.
    """

    rows: int
    lines: int
    text_bytes: int
    log_bytes: int
    other_bytes: int
    database_bytes: int

    @property
    def overhead_bytes_per_line(self) -> float:
        """Bytes of a line besides its JSON: columns, indexes, what is free in pages."""
        return (self.log_bytes - self.text_bytes) / self.lines


@dataclass(frozen=True)
class Prices:
    """Bytes that a fleet takes: once, for each device, and for each line besides its JSON."""

    empty_bytes: float
    bytes_per_device: float
    overhead_bytes_per_line: float

    def database_bytes(self, *, devices: int, lines: int, text_bytes: int) -> float:
        """The size of a database."""
        return self.empty_bytes + devices * self.bytes_per_device + lines * self.overhead_bytes_per_line + text_bytes


def rows_of(*, devices: int, days: int, lines: int) -> int:
    """Rows of devices that were seen on so many days."""
    return lines + devices * (ROWS_PER_DEVICE + days * ROWS_PER_DEVICE_DAY)


def sizes_of(url: str) -> Sizes:
    """Measure a database."""
    database = Database(url, upgraded=False)
    try:
        with database.reading() as connection:
            counted = {
                table.name: int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
                for table in METADATA.sorted_tables
            }
            taken = {
                name: int(connection.execute(sa.select(sa.func.pg_total_relation_size(name))).scalar_one())
                for name in counted
            }
            text = sa.select(sa.func.coalesce(sa.func.sum(sa.func.octet_length(LOG_LINES.c.line)), 0))
            text_bytes = int(connection.execute(text).scalar_one())
            size = connection.execute(sa.select(sa.func.pg_database_size(sa.func.current_database()))).scalar_one()
    finally:
        database.close()
    log_bytes = taken.pop(LOG_LINES.name)
    return Sizes(
        rows=sum(counted.values()),
        lines=counted[LOG_LINES.name],
        text_bytes=text_bytes,
        log_bytes=log_bytes,
        other_bytes=sum(taken.values()),
        database_bytes=int(size),
    )
