"""The log lines of all devices, without duplicates; only the latest per device are kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from device_sdk.files.untrusted_json import decode_json
from device_sdk.logs.adaptation_log import LogLine
from server.database import Database
from server.log_lines import CheckedLine
from server.tokens import utc_now


@dataclass(frozen=True)
class Ingested:
    """``accepted``: new lines; ``duplicates``: stored already, or older than the lines kept."""

    accepted: int
    duplicates: int


@dataclass(frozen=True)
class Device:
    """A device that sent lines: the number stored, and the time of the last reception, ISO 8601 in UTC."""

    device: str
    lines: int
    last_seen: str


@dataclass(frozen=True)
class StoredLine:
    """A line of a device; ``received``: time of reception, ISO 8601 in UTC."""

    device: str
    received: str
    time: str
    line: LogLine


class LogStore:
    """Log lines in a database; per device the ``keep_lines`` latest by their own timestamps."""

    def __init__(self, database: Database, *, keep_lines: int, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._keep_lines = keep_lines
        self._now = now

    def add(self, device: str, lines: Sequence[CheckedLine]) -> Ingested:
        """Store the lines that are new, all or none.

        Raises:
            StorageError: they could not be stored.
        """
        received = self._now().isoformat(timespec="milliseconds")
        insert = (
            "INSERT OR IGNORE INTO log_lines (device, digest, time, received, event, line) VALUES (?, ?, ?, ?, ?, ?)"
        )
        with self._database.writing() as connection:
            # A device sends its whole log every time; deleted lines must not be stored again.
            oldest = self._oldest_kept(connection, device)
            rows = [
                (device, line.digest, line.time, received, line.event, line.encoded())
                for line in lines
                if line.time >= oldest
            ]
            accepted = connection.executemany(insert, rows).rowcount if rows else 0
            self._let_go(connection, device)
        return Ingested(accepted, len(lines) - accepted)

    def latest(self, count: int) -> list[StoredLine]:
        """The latest lines of all devices, the newest first."""
        query = "SELECT device, received, time, line FROM log_lines ORDER BY time DESC, id DESC LIMIT ?"
        return self._lines(query, (count,))

    def latest_of_each_event(self, devices: int) -> list[StoredLine]:
        """The latest line of each kind of event, for the ``devices`` with the most recent lines."""
        # SQLite takes the other columns from the row that has the maximum.
        query = """
            SELECT device, received, max(time), line FROM log_lines WHERE device IN
                (SELECT device FROM log_lines GROUP BY device ORDER BY max(received) DESC LIMIT ?)
            GROUP BY device, event
        """
        return self._lines(query, (devices,))

    def devices(self) -> list[Device]:
        """All devices that sent lines, the latest first."""
        query = "SELECT device, count(*), max(received) FROM log_lines GROUP BY device ORDER BY max(received) DESC"
        with self._database.reading() as connection:
            return [Device(*row) for row in connection.execute(query).fetchall()]

    def _oldest_kept(self, connection: sqlite3.Connection, device: str) -> str:
        """The timestamp of the oldest line to keep; "" below the limit."""
        query = "SELECT time FROM log_lines WHERE device = ? ORDER BY time DESC LIMIT 1 OFFSET ?"
        row = connection.execute(query, (device, self._keep_lines - 1)).fetchone()
        return row[0] if row else ""

    def _let_go(self, connection: sqlite3.Connection, device: str) -> None:
        connection.execute(
            "DELETE FROM log_lines WHERE id IN"
            " (SELECT id FROM log_lines WHERE device = ? ORDER BY time DESC, id DESC LIMIT -1 OFFSET ?)",
            (device, self._keep_lines),
        )

    def _lines(self, query: str, parameters: tuple[int, ...]) -> list[StoredLine]:
        with self._database.reading() as connection:
            rows = connection.execute(query, parameters).fetchall()
        return [StoredLine(device, received, time, decode_json(line, LogLine)) for device, received, time, line in rows]
