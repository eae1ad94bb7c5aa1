"""Reads the fleet's tables. No query reads all log lines, and none skips rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from device_sdk.files.atomic import decode_json
from device_sdk.logs.adaptation_log import LogLine
from server.errors import NotFoundError
from server.fleet.device_state import DeviceState
from server.fleet.listing import DeviceFilter, Order, Place, pages
from server.state.database import Database
from server.state.log_store import StoredLine
from server.state.tables import FLEET_DEVICES, FLEET_PERIODS, LOG_LINES, RETENTION

_COLUMNS = [FLEET_DEVICES.c[field.name] for field in fields(DeviceState)]
_CHOOSING = ("adapted", "plan_chosen", "split")
_ROWS_AT_ONCE = 1000
_ABOVE_ALL_IDS = 2**63 - 1
USE_STEPS = tuple(step / 10 for step in range(1, 21))  # of latency over budget
SHARE_STEPS = (0.0, *(step / 10 for step in range(1, 11)))


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
class Group:
    """Devices that have a value in common. ``over_budget``: of them; ``last_seen``: of the latest."""

    value: str | None
    devices: int
    over_budget: int
    last_seen: str


@dataclass(frozen=True)
class Totals:
    """Numbers of devices: all, seen and failed since a time, and over their budget of those that have one."""

    devices: int
    seen: int
    failed: int
    budgeted: int
    over_budget: int


class FleetStore:
    """The fleet as it is kept by ``Aggregates``.

    Raises:
        StorageError: by every method, if the database cannot be read.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def totals(self, *, since: str) -> Totals:
        """The fleet in numbers; ``since``: ISO 8601 in UTC."""
        row = FLEET_DEVICES.c
        query = sa.select(
            sa.func.count(),
            _number_of(row.last_seen >= since),
            _number_of(row.failure_time >= since),
            sa.func.count(row.budget_use),
            _number_of(row.budget_use > 1.0),
        )
        with self._database.reading() as connection:
            return Totals(*connection.execute(query).one())

    def groups(self, column: str, *, most: int) -> list[Group]:
        """The groups by ``bundle`` or ``plan_kind``, the largest first; at most so many."""
        row = FLEET_DEVICES.c
        by, count = row[column], sa.func.count()
        query = sa.select(by, count, _number_of(row.budget_use > 1.0), sa.func.max(row.last_seen)).group_by(by)
        with self._database.reading() as connection:
            return [Group(*one) for one in connection.execute(query.order_by(count.desc(), by).limit(most))]

    def distribution(self, column: str, steps: tuple[float, ...]) -> list[int]:
        """Devices by a value: item ``i`` has those up to ``steps[i]`` and above the step before; the last, the rest."""
        by = FLEET_DEVICES.c[column]
        step = sa.case(*((by <= edge, number) for number, edge in enumerate(steps)), else_=len(steps))
        query = sa.select(step, sa.func.count()).where(by.is_not(None)).group_by(step)
        counts = [0] * (len(steps) + 1)
        with self._database.reading() as connection:
            for number, count in connection.execute(query):
                counts[number] = count
        return counts

    def periods(self, unit: str, *, since: str) -> dict[str, dict[str, int]]:
        """Devices by kind in each period from ``since`` on."""
        row = FLEET_PERIODS.c
        query = sa.select(row.period, row.kind, sa.func.sum(row.devices)).where(row.unit == unit, row.period >= since)
        found: dict[str, dict[str, int]] = {}
        with self._database.reading() as connection:
            for period, kind, devices in connection.execute(query.group_by(row.period, row.kind)):
                found.setdefault(period, {})[kind] = int(devices)
        return found

    def count(self, wanted: DeviceFilter) -> int:
        """The number of devices that a filter lets pass."""
        query = sa.select(sa.func.count()).select_from(FLEET_DEVICES).where(*wanted.conditions())
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def devices(
        self, wanted: DeviceFilter, order: Order, *, most: int, after: Place | None = None
    ) -> tuple[list[DeviceState], Place | None]:
        """A page of devices, and the place behind which the next one starts; None at the end."""
        found: list[DeviceState] = []
        with self._database.reading() as connection:
            for query in pages(_COLUMNS, wanted, order, after):
                rows = connection.execute(query.limit(most + 1 - len(found)))
                found += [DeviceState(*row) for row in rows]
                if len(found) > most:
                    break
        if len(found) <= most:
            return found, None
        last = found[most - 1]
        return found[:most], Place(getattr(last, order.column), last.device)

    def all_devices(
        self, wanted: DeviceFilter, order: Order, *, most: int, after: Place | None = None
    ) -> Iterator[DeviceState]:
        """The same devices one by one, at most so many, read a thousand at a time."""
        while most > 0:
            some, after = self.devices(wanted, order, most=min(most, _ROWS_AT_ONCE), after=after)
            yield from some
            most -= len(some)
            if after is None:
                return

    def device(self, name: str) -> DeviceState:
        """The state of a device (NotFoundError if none of this name sent a line)."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(*_COLUMNS).where(FLEET_DEVICES.c.device == name)).first()
        if row is None:
            raise NotFoundError("there is no such device", hint="GET /v1/devices lists them")
        return DeviceState(*row)

    def senders(self) -> list[Device]:
        """All devices that sent lines, the latest first."""
        row, dropped = FLEET_DEVICES.c, sa.func.coalesce(RETENTION.c.dropped, 0)
        query = (
            sa.select(row.device, row.lines - dropped, row.last_seen, dropped)
            .select_from(FLEET_DEVICES.outerjoin(RETENTION, row.device == RETENTION.c.device))
            .order_by(row.last_seen.desc(), row.device)
        )
        with self._database.reading() as connection:
            return [Device(*found) for found in connection.execute(query)]

    def device_count(self) -> int:
        """The number of devices that sent lines."""
        return self.count(DeviceFilter())

    def plans(self, device: str, *, most: int) -> list[StoredLine]:
        """The latest lines of a device that chose a plan, the oldest first."""
        row, found = LOG_LINES.c, []
        for event in _CHOOSING:  # a query for each, so that the index has them in order
            query = _LINES.where(row.device == device, row.event == event)
            found += self._lines(query.order_by(row.time.desc()).limit(most))
        found.sort(key=lambda line: line[1].time)
        return [line for _, line in found[-most:]]

    def lines(self, device: str, *, most: int, before: int | None = None) -> tuple[list[StoredLine], int | None]:
        """Lines of a device, the last to arrive first, and the number before which the next page starts."""
        row = LOG_LINES.c
        # Not `device = …`: PostgreSQL may then go through the lines of all devices by id, until it has found enough.
        key = sa.tuple_(row.device, row.id) < sa.tuple_(sa.literal(device), sa.literal(before or _ABOVE_ALL_IDS))
        query = _LINES.where(row.device >= device, key).order_by(row.device.desc(), row.id.desc())
        found = self._lines(query.limit(most + 1))
        return [line for _, line in found[:most]], found[most - 1][0] if len(found) > most else None

    def _lines(self, query: sa.Select[Any]) -> list[tuple[int, StoredLine]]:
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [
            (number, StoredLine(device, received, time, decode_json(line, LogLine)))
            for number, device, received, time, line in rows
        ]


_LINES = sa.select(LOG_LINES.c.id, LOG_LINES.c.device, LOG_LINES.c.received, LOG_LINES.c.time, LOG_LINES.c.line)


def _number_of(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)
