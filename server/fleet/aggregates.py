"""Keeps the fleet's tables up to date, in the transaction that stores log lines.

Days and hours are sets, and a device's state is that of its newest lines: counting lines again changes neither.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime

import sqlalchemy as sa

from device_sdk.files.atomic import decode_json
from device_sdk.logs.adaptation_log import LogLine
from server.fleet.device_state import DeviceState, Seen
from server.fleet.hours import DAY, HOUR, SEEN, DayKind, Period, first_day, hours_of, newly
from server.state.database import insert, utc_now
from server.state.log_store import CheckedLine, taken_time
from server.state.tables import FLEET_DEVICE_DAYS, FLEET_DEVICES, FLEET_PERIODS, LOG_LINES, RETENTION

PARTS = 8  # of the counters of a period
_ROWS_AT_ONCE = 500


class Aggregates:
    """An observer of log lines. A device without a row is counted from all its stored lines."""

    def __init__(self, *, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now

    def __call__(self, connection: sa.Connection, device: str, lines: Sequence[CheckedLine]) -> None:
        """Count the new lines of a device, whose row in ``retention`` the caller holds."""
        state = _find(connection, device)
        if state is None:
            self.recount(connection, device)
            return
        now = self._now()
        received = now.isoformat(timespec="milliseconds")
        seen = [Seen(taken_time(line.time, now), received, line.line) for line in lines]
        _store(connection, self._count(connection, state, seen, now))

    def recount(self, connection: sa.Connection, device: str) -> None:
        """Count all stored lines of a device again, whose row in ``retention`` the caller holds. Idempotent."""
        state, now, last = _find(connection, device), self._now(), 0
        state = None if state is None else replace(state, lines=0)
        while found := _stored(connection, device, last):
            last, lines = found
            state = state or DeviceState(device, lines[0].received, lines[0].received)
            state = self._count(connection, state, lines, now)
        if state is not None:
            dropped = sa.select(RETENTION.c.dropped).where(RETENTION.c.device == device)
            gone = connection.execute(dropped).scalar() or 0
            _store(connection, replace(state, lines=state.lines + gone))

    def _count(
        self, connection: sa.Connection, state: DeviceState, lines: Sequence[Seen], now: datetime
    ) -> DeviceState:
        """Count lines in days and periods. Returns the state after them, which is not stored yet."""
        for seen in lines:
            state = state.after(seen)
        since = first_day(now)
        found = hours_of(lines, since=since)
        days, periods = newly(_known_hours(connection, state.device, found), found)
        part = part_of(state.device)
        if any(kind == SEEN and unit == DAY for unit, _, kind in periods):
            _forget(connection, state.device, part, since)
        _store_days(connection, state.device, days)
        _add(connection, part, periods)
        return state


def part_of(device: str) -> int:
    """The part of the counters that a device adds to."""
    return zlib.crc32(device.encode()) % PARTS


def _find(connection: sa.Connection, device: str) -> DeviceState | None:
    row = connection.execute(sa.select(FLEET_DEVICES).where(FLEET_DEVICES.c.device == device)).mappings().first()
    return None if row is None else DeviceState(**row)


def _stored(connection: sa.Connection, device: str, after: int) -> tuple[int, list[Seen]] | None:
    """The next lines of a device in the order of arrival, and the id of the last; None at the end."""
    lines = LOG_LINES.c
    query = sa.select(lines.id, lines.time, lines.received, lines.line).where(lines.device == device, lines.id > after)
    rows = connection.execute(query.order_by(lines.id).limit(_ROWS_AT_ONCE)).all()
    if not rows:
        return None
    return rows[-1][0], [Seen(time, received, decode_json(line, LogLine)) for _, time, received, line in rows]


def _store(connection: sa.Connection, state: DeviceState) -> None:
    row = asdict(state)
    stored = insert(connection, FLEET_DEVICES).values(row)
    connection.execute(stored.on_conflict_do_update(index_elements=["device"], set_=row))


def _known_hours(connection: sa.Connection, device: str, found: dict[DayKind, int]) -> dict[DayKind, int]:
    days = FLEET_DEVICE_DAYS.c
    of_lines = {day for day, _ in found}  # at most as many as are kept
    query = sa.select(days.day, days.kind, days.hours).where(days.device == device, days.day.in_(of_lines))
    return {(day, kind): hours for day, kind, hours in connection.execute(query)}


def _store_days(connection: sa.Connection, device: str, days: dict[DayKind, int]) -> None:
    rows = [{"device": device, "day": day, "kind": kind, "hours": hours} for (day, kind), hours in days.items()]
    for some in _groups(rows):
        stored = insert(connection, FLEET_DEVICE_DAYS).values(some)
        keys = ["device", "day", "kind"]
        connection.execute(stored.on_conflict_do_update(index_elements=keys, set_={"hours": stored.excluded.hours}))


def _add(connection: sa.Connection, part: int, periods: Sequence[Period]) -> None:
    """Count a device in periods. Rows are locked in the order of their keys: transactions never wait in a circle."""
    rows: list[dict[str, object]] = [
        {"unit": unit, "period": period, "kind": kind, "part": part, "devices": 1} for unit, period, kind in periods
    ]
    for some in _groups(rows):
        added = insert(connection, FLEET_PERIODS).values(some)
        keys = ["unit", "period", "kind", "part"]
        more = {"devices": FLEET_PERIODS.c.devices + added.excluded.devices}
        connection.execute(added.on_conflict_do_update(index_elements=keys, set_=more))


def _groups(rows: Sequence[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        yield list(rows[start : start + _ROWS_AT_ONCE])


def _forget(connection: sa.Connection, device: str, part: int, since: str) -> None:
    """Delete what is older than the first day that is kept, of this device and of its part of the counters."""
    days, periods = FLEET_DEVICE_DAYS.c, FLEET_PERIODS.c
    connection.execute(sa.delete(FLEET_DEVICE_DAYS).where(days.device == device, days.day < since))
    for unit in (DAY, HOUR):
        old = sa.and_(periods.unit == unit, periods.period < since, periods.part == part)
        connection.execute(sa.delete(FLEET_PERIODS).where(old))
