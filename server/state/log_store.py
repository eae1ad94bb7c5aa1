"""The adaptation log lines of all devices: checked, without duplicates; per device those that arrived last."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from device_sdk.files.atomic import decode_json
from device_sdk.logs.adaptation_log import SCHEMA_VERSION, LogLine
from server.errors import MalformedError, UnprocessableError
from server.state.database import Database, insert, utc_now
from server.state.tables import DROPPED_LINES, LOG_LINES, RETENTION

_MAX_SKEW = timedelta(minutes=5)
_ROWS_AT_ONCE = 500  # SQLite takes 32,766 parameters
_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,128}")

Observer = Callable[[sa.Connection, str, Sequence["CheckedLine"]], None]
"""Sees the new lines of a device, in order, in the transaction that stores them: what it writes is stored with them."""


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
class StoredLine:
    """A line of a device; ``received``: time of reception, ISO 8601 in UTC."""

    device: str
    received: str
    time: str
    line: LogLine


def taken_time(time: str, now: datetime) -> str:
    """The time that a line counts with: its own, or that of its arrival if its own is more than 5 minutes later."""
    arrival, latest = (one.isoformat(timespec="milliseconds") for one in (now, now + _MAX_SKEW))
    return arrival if time > latest else time


class LogStore:
    """Log lines in a database; per device the ``keep_lines`` that arrived last.

    Of dropped lines the latest ``keep_digests`` digests are kept per device, since devices send their whole log every
    time: it holds a few ten thousand lines. Times that are more than 5 minutes in the future count as the time of
    arrival, for sorting; the line itself keeps its own. ``observers`` see each line once, whatever is sent again.
    """

    def __init__(
        self,
        database: Database,
        *,
        keep_lines: int,
        keep_digests: int = 100_000,
        observers: Sequence[Observer] = (),
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._observers = observers
        self._keep_lines, self._keep_digests = keep_lines, keep_digests
        self._now = now

    def add(self, device: str, lines: Sequence[CheckedLine]) -> Ingested:
        """Store the lines that are new, all or none.

        Raises:
            StorageError: they could not be stored.
        """
        now = self._now()
        received = now.isoformat(timespec="milliseconds")
        rows: list[dict[str, object]] = [
            {
                "device": device,
                "digest": line.digest,
                "time": taken_time(line.time, now),
                "received": received,
                "event": line.event,
                "line": line.encoded(),
            }
            for line in lines
        ]
        with self._database.writing() as connection:
            lock_device(connection, device)
            new = _insert_new(connection, device, rows)
            if new:
                self._tell(connection, device, new, lines)
            dropped = self._let_go(connection, device)
        return Ingested(len(new), len(lines) - len(new), dropped)

    def latest(self, count: int) -> list[StoredLine]:
        """The latest lines of all devices, the newest first."""
        return self._lines(_STORED.order_by(LOG_LINES.c.time.desc(), LOG_LINES.c.id.desc()).limit(count))

    def _tell(self, connection: sa.Connection, device: str, new: set[bytes], lines: Sequence[CheckedLine]) -> None:
        accepted = {line.digest: line for line in lines if line.digest in new}  # a body may repeat a line
        for observer in self._observers:
            observer(connection, device, list(accepted.values()))

    def _let_go(self, connection: sa.Connection, device: str) -> int:
        """Drop what arrived before the lines to keep, and remember its digests. Returns how many went so far."""
        lines = LOG_LINES.c
        newest = sa.select(lines.id).where(lines.device == device).order_by(lines.id.desc())
        last_to_go = connection.execute(newest.limit(1).offset(self._keep_lines)).scalar()
        if last_to_go is not None:
            old = sa.and_(lines.device == device, lines.id <= last_to_go)
            remembered = sa.select(lines.device, lines.digest).where(old).order_by(lines.id)
            connection.execute(sa.insert(DROPPED_LINES).from_select(["device", "digest"], remembered))
            count = connection.execute(sa.delete(LOG_LINES).where(old)).rowcount
            counted = sa.update(RETENTION).where(RETENTION.c.device == device)
            connection.execute(counted.values(dropped=RETENTION.c.dropped + count))
            self._forget_digests(connection, device)
        dropped = sa.select(RETENTION.c.dropped).where(RETENTION.c.device == device)
        return int(connection.execute(dropped).scalar_one())

    def _forget_digests(self, connection: sa.Connection, device: str) -> None:
        gone = DROPPED_LINES.c
        newest = sa.select(gone.number).where(gone.device == device).order_by(gone.number.desc())
        last_to_go = connection.execute(newest.limit(1).offset(self._keep_digests)).scalar()
        if last_to_go is not None:
            connection.execute(sa.delete(DROPPED_LINES).where(gone.device == device, gone.number <= last_to_go))

    def _lines(self, query: sa.Select[Any]) -> list[StoredLine]:
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [StoredLine(device, received, time, decode_json(line, LogLine)) for device, received, time, line in rows]


_STORED = sa.select(LOG_LINES.c.device, LOG_LINES.c.received, LOG_LINES.c.time, LOG_LINES.c.line)


def lock_device(connection: sa.Connection, device: str) -> None:
    """Have transactions on one device take turns, on all replicas, until the caller's ends."""
    row = {"device": device, "dropped": 0}
    connection.execute(insert(connection, RETENTION).on_conflict_do_nothing(), row)
    connection.execute(sa.select(RETENTION.c.device).where(RETENTION.c.device == device).with_for_update())


def _insert_new(connection: sa.Connection, device: str, rows: Sequence[dict[str, object]]) -> set[bytes]:
    """Insert the rows whose lines were never stored; returns their digests."""
    accepted: set[bytes] = set()
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        digests = [row["digest"] for row in some]
        gone = DROPPED_LINES.c
        known = sa.select(gone.digest).where(gone.device == device, gone.digest.in_(digests))
        dropped = {bytes(digest) for digest in connection.execute(known).scalars()}
        new = [row for row in some if row["digest"] not in dropped]
        if new:
            added = insert(connection, LOG_LINES).values(new).on_conflict_do_nothing()
            accepted.update(bytes(one) for one in connection.execute(added.returning(LOG_LINES.c.digest)).scalars())
    return accepted
