"""The adaptation log lines of all devices: checked, without duplicates; per device those that arrived last."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from device_sdk.files.atomic import decode_json
from device_sdk.logs.adaptation_log import SCHEMA_VERSION, LogLine
from server.errors import MalformedError, UnprocessableError
from server.state.database import Database, utc_now

_MAX_SKEW = timedelta(minutes=5)
_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True)
class CheckedLine:
    """A valid line. ``digest``: sha256 of it as received; ``time``: its timestamp in UTC."""

    digest: bytes
    time: str
    line: LogLine

    @property
    def event(self) -> str:
        """The kind of its event."""
        return str(self.line.event.__struct_config__.tag)

    def encoded(self) -> bytes:
        """The line without fields that are not in the schema."""
        return msgspec.json.encode(self.line)


def is_device(name: str) -> bool:
    """True if ``name`` can be the name of a device."""
    return _DEVICE.fullmatch(name) is not None


def check_device(name: str | None) -> str:
    """The name of the sending device (MalformedError if it is invalid)."""
    if name is None or not is_device(name):
        raise MalformedError(
            "the header Pathweave-Device does not name a device",
            hint="1 to 128 letters, digits, dots, dashes and underscores",
        )
    return name


def check_lines(body: bytes, *, max_line_bytes: int) -> list[CheckedLine]:
    """The lines of ``body``, if all are valid.

    Raises:
        UnprocessableError: a line is too long or violates the schema; names line and reason.
    """
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [_check(line, f"line {number}", max_line_bytes) for number, line in enumerate(lines, start=1)]


def _check(data: bytes, which: str, max_line_bytes: int) -> CheckedLine:
    if len(data) > max_line_bytes:
        raise UnprocessableError(f"{which}: it has {len(data)} bytes; {max_line_bytes} are the limit")
    try:
        line = decode_json(data, LogLine)
        time = datetime.fromisoformat(line.time)
        in_utc = (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UnprocessableError(f"{which}: {error}") from error
    if line.schema != SCHEMA_VERSION:
        raise UnprocessableError(f"{which}: schema {line.schema} is not supported; {SCHEMA_VERSION} is")
    return CheckedLine(hashlib.sha256(data).digest(), in_utc.isoformat(timespec="milliseconds"), line)


@dataclass(frozen=True)
class Ingested:
    """``accepted``: new lines; ``duplicates``: byte-identical to accepted ones.

    ``dropped``: how many lines of the device retention has dropped so far, this upload included.
    """

    accepted: int
    duplicates: int
    dropped: int = 0


@dataclass(frozen=True)
class Device:
    """A device that sent lines: the number stored, and the time of the last reception, ISO 8601 in UTC.

    ``dropped``: how many of its lines retention has dropped.
    """

    device: str
    lines: int
    last_seen: str
    dropped: int


@dataclass(frozen=True)
class StoredLine:
    """A line of a device; ``received``: time of reception, ISO 8601 in UTC."""

    device: str
    received: str
    time: str
    line: LogLine


_INSERT = """
    INSERT OR IGNORE INTO log_lines (device, digest, time, received, event, line)
    SELECT :device, :digest, :time, :received, :event, :line
    WHERE NOT EXISTS (SELECT 1 FROM dropped_lines WHERE device = :device AND digest = :digest)
"""


class LogStore:
    """Log lines in a database; per device the ``keep_lines`` that arrived last.

    Of dropped lines the latest ``keep_digests`` digests are kept per device, since devices send their whole log every
    time: it holds a few ten thousand lines. Times that are more than 5 minutes in the future count as the time of
    arrival, for sorting; the line itself keeps its own.
    """

    def __init__(
        self,
        database: Database,
        *,
        keep_lines: int,
        keep_digests: int = 100_000,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._keep_lines, self._keep_digests = keep_lines, keep_digests
        self._now = now

    def add(self, device: str, lines: Sequence[CheckedLine]) -> Ingested:
        """Store the lines that are new, all or none.

        Raises:
            StorageError: they could not be stored.
        """
        now = self._now()
        received, latest = (time.isoformat(timespec="milliseconds") for time in (now, now + _MAX_SKEW))
        rows = [
            {
                "device": device,
                "digest": line.digest,
                "time": received if line.time > latest else line.time,
                "received": received,
                "event": line.event,
                "line": line.encoded(),
            }
            for line in lines
        ]
        with self._database.writing() as connection:
            accepted = connection.executemany(_INSERT, rows).rowcount if rows else 0
            self._let_go(connection, device)
            row = connection.execute("SELECT dropped FROM retention WHERE device = ?", (device,)).fetchone()
        return Ingested(accepted, len(lines) - accepted, row[0] if row else 0)

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
        query = """
            SELECT device, count(*), max(received), coalesce(dropped, 0)
            FROM log_lines LEFT JOIN retention USING (device)
            GROUP BY device ORDER BY max(received) DESC
        """
        with self._database.reading() as connection:
            return [Device(*row) for row in connection.execute(query).fetchall()]

    def _let_go(self, connection: sqlite3.Connection, device: str) -> None:
        """Drop what arrived before the lines to keep; count it, and remember its digests."""
        query = "SELECT id FROM log_lines WHERE device = ? ORDER BY id DESC LIMIT 1 OFFSET ?"
        row = connection.execute(query, (device, self._keep_lines)).fetchone()
        if row is None:
            return
        old = "FROM log_lines WHERE device = ? AND id <= ?"
        remember = f"INSERT INTO dropped_lines (device, digest) SELECT device, digest {old} ORDER BY id"
        connection.execute(remember, (device, *row))
        count = connection.execute(f"DELETE {old}", (device, *row)).rowcount
        statement = (
            "INSERT INTO retention (device, dropped) VALUES (?, ?)"
            " ON CONFLICT (device) DO UPDATE SET dropped = dropped + excluded.dropped"
        )
        connection.execute(statement, (device, count))
        connection.execute(
            "DELETE FROM dropped_lines WHERE number IN"
            " (SELECT number FROM dropped_lines WHERE device = ? ORDER BY number DESC LIMIT -1 OFFSET ?)",
            (device, self._keep_digests),
        )

    def _lines(self, query: str, parameters: tuple[int, ...]) -> list[StoredLine]:
        with self._database.reading() as connection:
            rows = connection.execute(query, parameters).fetchall()
        return [StoredLine(device, received, time, decode_json(line, LogLine)) for device, received, time, line in rows]
