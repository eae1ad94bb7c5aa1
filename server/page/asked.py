"""Parameters of a view, read from the address alone: views are bookmarked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote, urlencode

from server.errors import MalformedError
from server.fleet.device_state import FAILURES
from server.fleet.listing import DeviceFilter, Order, Place

ROWS = 50  # of a page of a table
MOST_ROWS = 100_000  # of an export; ?after= goes on behind them
_MOST_TEXT = 200

# Lengths of time that devices may be filtered by.
SPANS: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}


@dataclass(frozen=True)
class Asked:
    """The path of a view and the values behind it."""

    path: str
    values: Mapping[str, str]

    def text(self, name: str) -> str | None:
        """A value; None if it is absent or empty.

        Raises:
            MalformedError: it is longer than any name.
        """
        value = self.values.get(name, "").strip()
        if len(value) > _MOST_TEXT or "\0" in value:
            raise MalformedError(f"{name} is invalid", hint=f"at most {_MOST_TEXT} characters")
        return value or None

    def one_of(self, name: str, known: Mapping[str, object]) -> str | None:
        """A value that is among some (MalformedError otherwise)."""
        value = self.text(name)
        if value is not None and value not in known:
            raise MalformedError(f"{name} is invalid", hint=f"one of {', '.join(known)}")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number (MalformedError otherwise)."""
        value = self.text(name)
        if value is not None and not (value.isascii() and value.isdigit() and len(value) < 19):
            raise MalformedError(f"{name} is invalid", hint="a whole number")
        return None if value is None else int(value)

    def address(self, **changes: str | None) -> str:
        """The same view with other values; None: without."""
        kept = {**self.values, **changes}
        return address(self.path, **{name: value for name, value in kept.items() if value})


def address(path: str, **values: str | None) -> str:
    """The address of a view."""
    query = urlencode({name: value for name, value in values.items() if value})
    return f"{path}?{query}" if query else path


def device_address(name: str) -> str:
    """The address of a device's view."""
    return f"/page/devices/{quote(name, safe='')}"


def bundle_address(name: str) -> str:
    """The address of a bundle's view."""
    return f"/page/bundles/{quote(name, safe='')}"


def device_filter(asked: Asked, times: Mapping[str, str]) -> DeviceFilter:
    """The filter of an address; ``times``: for each span, when it began."""
    unseen, seen, failed = (asked.one_of(name, SPANS) for name in ("unseen", "seen", "failed"))
    return DeviceFilter(
        search=asked.text("search"),
        bundle=asked.text("bundle"),
        plan=asked.text("plan"),
        over_budget=asked.one_of("over", {"1": None}) is not None,
        unseen_since=times[unseen] if unseen else None,
        seen_since=times[seen] if seen else None,
        failure=asked.one_of("failure", FAILURES),
        failed_since=times[failed] if failed else None,
    )


def device_order(asked: Asked) -> Order:
    """The order of an address; the last seen first unless it says so."""
    text = asked.text("sort")
    return Order() if text is None else Order.parse(text)


def device_place(asked: Asked, order: Order) -> Place | None:
    """The place of an address; None: the beginning."""
    text = asked.values.get("after", "").strip()[:2000]
    return Place.parse(text, order) if text else None
