"""The list of devices, filtered and page by page, and the history of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from markupsafe import Markup

from server.fleet.device_state import FAILURES, DeviceState, latency_and_budget
from server.fleet.listing import SORTS, DeviceFilter
from server.page.asked import (
    MOST_ROWS,
    ROWS,
    SPANS,
    Asked,
    address,
    device_address,
    device_filter,
    device_order,
    device_place,
)
from server.page.charts import Moment, timeline
from server.page.figures import ago, digest, milliseconds, moment, number, share, short
from server.page.overview import event_row, events_table, names_of_bundles
from server.page.table import Column, Row, Table, View
from server.services import Services
from server.state.log_store import StoredLine

_CHOICES = 50  # of a filter
_PLANS = 120  # of a timeline
SORTED: Mapping[str, str] = {column: name for name, column in SORTS.items()}


def devices(services: Services, asked: Asked) -> View:
    """The view at ``/page/devices``: see ``asked`` for its filters."""
    now, names = services.now(), names_of_bundles(services)
    times = {name: (now - span).isoformat(timespec="milliseconds") for name, span in SPANS.items()}
    wanted, order = device_filter(asked, times), device_order(asked)
    after = device_place(asked, order)
    found, place = services.fleet.devices(wanted, order, most=ROWS, after=after)

    def rows(states: Sequence[DeviceState]) -> list[Row]:
        return [device_row(state, names) for state in states]

    table = Table(
        "devices",
        "Devices",
        _columns(now),
        rows(found),
        empty="No device is like this." if wanted != DeviceFilter() or after else _NO_DEVICE,
        every=lambda: (
            device_row(state, names) for state in services.fleet.all_devices(wanted, order, most=MOST_ROWS, after=after)
        ),
    )
    count = services.fleet.count(wanted)
    values = {
        "table": table,
        "columns": [column for column in table.columns if column.name in SHOWN],
        "count": number(count),
        "is_one": count == 1,
        "order": str(order),
        "sorted": order,
        "orders": {name: asked.address(sort=text, after=None) for name, text in _turned(str(order)).items()},
        "first": asked.address(after=None) if after else None,
        "next": None if place is None else asked.address(after=place.encoded()),
        "wanted": wanted,
        "chosen": {
            name: asked.text(name) or ""
            for name in ("search", "bundle", "plan", "failure", "unseen", "seen", "failed", "over")
        },
        "bundles": _choices(services, "bundle", lambda value: names.get(value, digest(value))),
        "plans": _choices(services, "plan_kind", str),
        "failures": FAILURES,
        "spans": SPANS,
        "clear": address(asked.path),
        "is_filtered": wanted != DeviceFilter(),
    }
    return View("devices", "Devices", "devices.html", (table,), values)


def device(services: Services, asked: Asked, name: str) -> View:
    """The view of one device at ``/page/devices/NAME``."""
    state = services.fleet.device(name)
    lines, rest = services.fleet.lines(name, most=ROWS, before=asked.whole("before"))
    events = events_table([event_row(line) for line in lines], of_one=True)
    moments = _moments(services.fleet.plans(name, most=_PLANS))
    plans = _plans_table(moments)
    row, names = device_row(state, names_of_bundles(services)), names_of_bundles(services)
    values = {
        "state": state,
        "bundle": row["bundle"],
        "bundle_address": address("/page/devices", bundle=state.bundle),
        "is_known": state.bundle in names,
        "now": services.now(),
        "failures": FAILURES,
        "events": events,
        "plans": plans,
        "chart": timeline(moments, said=_said(moments)) if moments else None,
        "first": asked.address(before=None) if asked.whole("before") else None,
        "next": None if rest is None else asked.address(before=str(rest)),
    }
    of_device = Table("device", "Device", _columns(services.now()), [row])
    return View("devices", name, "device.html", (of_device, plans, events), values)


def device_row(state: DeviceState, names: Mapping[str, str]) -> Row:
    """A device for a table. ``names``: of bundles, by digest."""
    row = asdict(state)
    return {**row, "bundle": names.get(state.bundle, digest(state.bundle)), "digest": state.bundle}


def _columns(now: datetime) -> tuple[Column, ...]:
    def over(row: Row) -> str | None:
        return "bad" if row["budget_use"] is not None and row["budget_use"] > 1 else None

    made = (
        Column("device", "Device", style="still", link=lambda row: device_address(row["device"])),
        Column(
            "last_seen",
            "Last seen",
            style="still",
            shown=lambda time: ago(time, now),
            hint=lambda row: moment(row["last_seen"]),
        ),
        Column("bundle", "Version", hint=lambda row: row["digest"]),
        Column("plan_kind", "Plan", hint=lambda row: row["subnet"]),
        Column("latency_ms", "Latency", "ms", shown=milliseconds, is_number=True, mark=over),
        Column("budget_ms", "Budget", "ms", shown=milliseconds, is_number=True),
        Column("budget_use", "Of budget", shown=share, is_number=True, mark=over, bar=_use, tick=0.5),
        Column("share_asked", "Asked", shown=share, is_number=True),
        Column(
            "failure",
            "Latest failure",
            shown=lambda kind: FAILURES.get(kind, kind),
            hint=lambda row: f"{moment(row['failure_time'])} {row['failure_text']}" if row["failure"] else None,
        ),
        Column(
            "failure_time",
            "Failed",
            style="still",
            shown=lambda time: ago(time, now),
            hint=lambda row: row["failure_time"],
        ),
        Column("subnet", "Subnet", shown=short, is_code=True),
        Column("runtime", "Runtime"),
        Column("digest", "Digest", is_code=True),
        Column("failure_text", "Reason"),
        Column("first_seen", "First seen", shown=moment),
        Column("lines", "Log lines", shown=number, is_number=True),
    )
    return made


SHOWN = (
    "device",
    "last_seen",
    "bundle",
    "plan_kind",
    "latency_ms",
    "budget_ms",
    "budget_use",
    "share_asked",
    "failure",
    "failure_time",
)


def _use(row: Row) -> float | None:
    return None if row["budget_use"] is None else row["budget_use"] / 2


def _turned(order: str) -> dict[str, str]:
    """By column, the order that its head leads to: figures from the highest first, then the other way round."""
    found = {}
    for name, column in SORTS.items():
        usual = name if name == "device" else f"-{name}"
        other = f"-{name}" if name == "device" else name
        found[column] = other if order == usual else usual
    return found


def _choices(services: Services, column: str, shown: Callable[[str], str]) -> list[tuple[str, str]]:
    groups = services.fleet.groups(column, most=_CHOICES)
    return [(one.value, f"{shown(one.value)} ({number(one.devices)})") for one in groups if one.value]


def _moments(lines: Sequence[StoredLine]) -> list[Moment]:
    found, kind = [], None
    for line in lines:
        times = latency_and_budget(line.line.event)
        if times is None:
            continue
        present = str(getattr(line.line.event, "plan_kind", None) or line.line.event.__struct_config__.tag)
        present = "subnet" if present == "adapted" else present
        found.append(Moment(line.time, times[0], times[1], present if present != kind else None))
        kind = present
    return found


def _plans_table(moments: Sequence[Moment]) -> Table:
    rows, kind = [], None
    for one in moments:
        kind = one.change or kind
        rows.append({"time": one.time, "plan": kind, "latency_ms": one.latency_ms, "budget_ms": one.budget_ms})
    shown = (
        Column("time", "Time", shown=moment, style="still"),
        Column("plan", "Plan"),
        Column("latency_ms", "Latency", "ms", shown=milliseconds, is_number=True),
        Column("budget_ms", "Budget", "ms", shown=milliseconds, is_number=True),
    )
    return Table("plans", "Plans that were chosen", shown, rows[::-1], empty="No plan was chosen yet.")


def _said(moments: Sequence[Moment]) -> str:
    over = sum(one.budget_ms is not None and one.latency_ms > one.budget_ms for one in moments)
    latest = milliseconds(moments[-1].latency_ms)
    return f"{len(moments)} plans, the latest takes {latest} ms; {over} were over their budget"


_NO_DEVICE = Markup("No device has sent its log yet: <code>pathweave logs BUNDLE --upload URL</code>.")
