"""Lists of devices: filters, orders, and the place in a list. Pure, but for the expressions of queries."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from server.errors import MalformedError
from server.state.tables import FLEET_DEVICES

# The columns that lists may be ordered by, by their names in addresses.
SORTS: dict[str, str] = {
    "seen": "last_seen",
    "device": "device",
    "latency": "latency_ms",
    "budget": "budget_use",
    "asked": "share_asked",
    "failed": "failure_time",
}


@dataclass(frozen=True)
class DeviceFilter:
    """The devices to list; None and False: any. ``search``: a part of the name, in any case.

    ``unseen_since``, ``seen_since``, ``failed_since``: times, ISO 8601 in UTC; ``failure``: the kind of the latest one.
    """

    search: str | None = None
    bundle: str | None = None
    plan: str | None = None
    over_budget: bool = False
    unseen_since: str | None = None
    seen_since: str | None = None
    failure: str | None = None
    failed_since: str | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """The conditions of a query."""
        row, found = FLEET_DEVICES.c, []
        if self.search:
            found.append(sa.func.lower(row.device).contains(self.search.lower(), autoescape=True))
        if self.bundle is not None:
            found.append(row.bundle == self.bundle)
        if self.plan is not None:
            found.append(row.plan_kind == self.plan)
        if self.over_budget:
            found.append(row.budget_use > 1.0)
        if self.unseen_since is not None:
            found.append(row.last_seen < self.unseen_since)
        if self.seen_since is not None:
            found.append(row.last_seen >= self.seen_since)
        if self.failure is not None:
            found.append(row.failure == self.failure)
        if self.failed_since is not None:
            found.append(row.failure_time >= self.failed_since)
        return found


@dataclass(frozen=True)
class Order:
    """An order of devices: by a column, then by name in the same direction. Devices without a value come last."""

    sort: str = "seen"
    descending: bool = True

    @classmethod
    def parse(cls, text: str) -> Order:
        """An order as it is in addresses: ``seen``, or ``-seen`` for the opposite direction.

        Raises:
            MalformedError: there is no such order.
        """
        name = text.removeprefix("-")
        if name not in SORTS:
            raise MalformedError("there is no such order", hint=f"sort by one of {', '.join(SORTS)}; -seen: descending")
        return cls(name, text.startswith("-"))

    def __str__(self) -> str:
        return f"{'-' * self.descending}{self.sort}"

    @property
    def column(self) -> str:
        """The column that decides."""
        return SORTS[self.sort]


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last device of a page, by the value that it is ordered by and its name."""

    value: str | float | None
    device: str

    @classmethod
    def parse(cls, text: str, order: Order) -> Place:
        """A place as ``encoded`` writes it.

        Raises:
            MalformedError: it is none, or of another order.
        """
        try:
            padded = text + "=" * (-len(text) % 4)
            place = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=cls)
        except (ValueError, binascii.Error, UnicodeError) as error:
            raise MalformedError("the place in the list is invalid", hint="start without ?after=") from error
        is_number = isinstance(FLEET_DEVICES.c[order.column].type, sa.Double)
        if place.value is not None and isinstance(place.value, str) == is_number:
            raise MalformedError("the place is in a list of another order", hint="start without ?after=")
        return place

    def encoded(self) -> str:
        """The place for an address."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def pages(
    columns: list[sa.Column[Any]], wanted: DeviceFilter, order: Order, after: Place | None
) -> list[sa.Select[Any]]:
    """Queries whose rows, one after the other, are the list behind ``after``: first those with a value."""
    by, name = FLEET_DEVICES.c[order.column], FLEET_DEVICES.c.device
    turned = sa.desc if order.descending else sa.asc
    query = sa.select(*columns).where(*wanted.conditions())
    valued = query.where(by.is_not(None)).order_by(turned(by), turned(name))
    rest = query.where(by.is_(None)).order_by(turned(name))
    if by.name == name.name:
        valued = query.order_by(turned(name))
    if after is not None:
        key, last = sa.tuple_(by, name), sa.tuple_(sa.literal(after.value), sa.literal(after.device))
        if after.value is not None:
            valued = valued.where(key < last if order.descending else key > last)
        else:
            rest = rest.where(name < after.device if order.descending else name > after.device)
            return [rest]
    return [valued, rest] if by.nullable else [valued]
