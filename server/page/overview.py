"""The overview: the fleet in numbers and pictures, read from what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from markupsafe import Markup

from server.fleet.device_state import FAILURES, OVER_BUDGET
from server.fleet.hours import DAY, HOUR, SEEN
from server.fleet.store import SHARE_STEPS, USE_STEPS, Group
from server.jobs.store import State
from server.page.asked import Asked, address, device_address
from server.page.charts import Series, columns
from server.page.figures import ago, digest, moment, number, share, short
from server.page.table import Column, Row, Table, View
from server.services import Services
from server.state.log_store import StoredLine

_GROUPS = 12  # rows of a table of groups
_EVENTS = 20
_SPANS = {HOUR: (48, timedelta(hours=1), 13), DAY: (30, timedelta(days=1), 10)}
KINDS: Mapping[str, str] = {OVER_BUDGET: "plan over its budget", **FAILURES}


def overview(services: Services, asked: Asked) -> View:
    """The view at ``/``; ``?by=day`` shows failures by day."""
    now, fleet = services.now(), services.fleet
    unit = asked.one_of("by", {HOUR: None, DAY: None}) or HOUR
    totals = fleet.totals(since=before(now, hours=24))
    versions = _versions(services, fleet.groups("bundle", most=_GROUPS), totals.devices)
    plans = _plans(fleet.groups("plan_kind", most=_GROUPS), totals.devices)
    use = _steps("latency", "Latency against budget", "budget", fleet.distribution("budget_use", USE_STEPS), USE_STEPS)
    asks = _steps(
        "asked", "Share of samples asked", "samples", fleet.distribution("share_asked", SHARE_STEPS), SHARE_STEPS
    )
    periods = _periods(fleet.periods(unit, since=_first(now, unit)), now, unit)
    events = events_table([event_row(line) for line in services.logs.latest(_EVENTS)])
    values = {
        "totals": totals,
        "jobs": services.jobs.counts(),
        "waiting": State.QUEUED.value,
        "running": State.RUNNING.value,
        "bundles": len(services.bundles.listing().bundles),
        "broken": services.bundles.listing().broken,
        "left": services.filling.devices_left,
        "versions": versions,
        "plans": plans,
        "use": use,
        "use_chart": _use_chart(use.rows),
        "asked_shares": asks,
        "asked_chart": _asked_chart(asks.rows),
        "periods": periods,
        "periods_chart": _periods_chart(periods.rows, unit),
        "legend": [(kind, label) for kind, label in KINDS.items() if any(row[kind] for row in periods.rows)],
        "unit": unit,
        "by": {one: asked.address(by=one) for one in (HOUR, DAY)},
        "events": events,
    }
    return View("overview", "Overview", "overview.html", (versions, plans, use, asks, periods, events), values)


def before(now: datetime, **span: float) -> str:
    """A time before now, as it is stored."""
    return (now - timedelta(**span)).isoformat(timespec="milliseconds")


def event_row(line: StoredLine) -> Row:
    """A line of a log for a table."""
    details = msgspec.to_builtins(line.line.event)
    kind = details.pop("event")
    shown = ", ".join(f"{name} {_value(value)}" for name, value in details.items() if value not in (None, [], {}, ""))
    return {"time": line.time, "device": line.device, "event": kind, "details": short(shown)}


def events_table(rows: Sequence[Row], *, of_one: bool = False) -> Table:
    """Lines of logs. ``of_one``: all of one device, which needs no column."""
    shown = (
        Column("time", "Time", shown=moment, style="still"),
        Column("device", "Device", style="still", link=lambda row: device_address(row["device"])),
        Column("event", "Event", shown=lambda kind: kind.replace("_", " "), style="still"),
        Column("details", "Details", style="long soft"),
    )
    kept = tuple(column for column in shown if not (of_one and column.name == "device"))
    return Table("events", "Latest events", kept, rows)


def names_of_bundles(services: Services) -> dict[str, str]:
    """Name and version of the bundles that are served, by digest."""
    listing = services.bundles.listing()
    return {one.bundle.digest: f"{one.name} {one.version}" for versions in listing.bundles.values() for one in versions}


def _versions(services: Services, groups: Sequence[Group], devices: int) -> Table:
    names, now = names_of_bundles(services), services.now()
    rows = [
        {
            "bundle": names.get(one.value or "", digest(one.value or "")),
            "digest": one.value,
            "devices": one.devices,
            "over_budget": one.over_budget,
            "over_share": one.over_budget / one.devices,
            "last_seen": one.last_seen,
        }
        for one in groups
    ]
    shown = (
        Column(
            "bundle",
            "Version",
            link=lambda row: address("/page/devices", bundle=row["digest"]),
            hint=lambda row: row["digest"],
        ),
        *_counted(devices),
        Column(
            "last_seen",
            "Last seen",
            style="still",
            shown=lambda time: ago(time, now),
            hint=lambda row: row["last_seen"],
        ),
        Column("digest", "Digest", shown=digest, is_code=True, hint=lambda row: row["digest"]),
    )
    return Table("versions", "Devices by version", shown, rows, empty=_NO_DEVICE)


def _plans(groups: Sequence[Group], devices: int) -> Table:
    rows = [
        {
            "plan": one.value,
            "devices": one.devices,
            "over_budget": one.over_budget,
            "over_share": one.over_budget / one.devices,
        }
        for one in groups
    ]
    kind = Column("plan", "Plan", link=lambda row: address("/page/devices", plan=row["plan"]) if row["plan"] else None)
    return Table("plans", "Devices by plan", (kind, *_counted(devices)), rows, empty=_NO_DEVICE)


def _counted(devices: int) -> tuple[Column, ...]:
    return (
        Column("devices", "Devices", shown=number, is_number=True, bar=lambda row: row["devices"] / max(devices, 1)),
        Column(
            "over_budget",
            "Over budget",
            shown=number,
            is_number=True,
        ),
        Column("over_share", "Share", shown=share, is_number=True),
    )


def _steps(name: str, caption: str, of: str, counts: Sequence[int], steps: Sequence[float]) -> Table:
    """A distribution; the last row has what is above all steps, and is left out where nothing can be."""
    lows = (None, *steps)
    rows = [
        {"above": low, "up_to": high, "devices": count}
        for low, high, count in zip(lows, (*steps, None), counts, strict=True)
    ]
    if steps[-1] >= 1.0 and of == "samples":
        rows = rows[:-1]
    shown = (
        Column("above", f"Above, of the {of}", shown=lambda value: f"{value:.0%}", is_number=True),
        Column("up_to", "Up to", shown=lambda value: f"{value:.0%}", is_number=True),
        Column("devices", "Devices", shown=number, is_number=True),
    )
    return Table(name, caption, shown, rows)


def _use_chart(rows: Sequence[Row]) -> Markup:
    within = [row["devices"] if row["up_to"] is not None and row["up_to"] <= 1.0 else 0 for row in rows]
    over = [0 if ok else row["devices"] for ok, row in zip((*(True,) * 10, *(False,) * 11), rows, strict=True)]
    names = [f"{row['above'] or 0:.0%} to {row['up_to']:.0%}" if row["up_to"] else "above 200%" for row in rows]
    ticks = {0: "0%", 5: "50%", 10: "100%", 15: "150%", 20: "200%"}
    said = f"{sum(within):,} devices within their latency budget, {sum(over):,} over it"
    return columns([Series("devices", "good", within), Series("devices", "bad", over)], names, ticks, said=said)


def _asked_chart(rows: Sequence[Row]) -> Markup:
    values = [row["devices"] for row in rows]
    names = ["none", *(f"{row['above']:.0%} to {row['up_to']:.0%}" for row in rows[1:])]
    ticks = {0: "none", 1: "0%", 3: "20%", 5: "40%", 7: "60%", 9: "80%"}
    said = f"{values[0]:,} devices ask a server about nothing, {sum(values[1:]):,} about some of their samples"
    return columns([Series("devices", "accent", values)], names, ticks, said=said)


def _first(now: datetime, unit: str) -> str:
    count, step, length = _SPANS[unit]
    return (now - (count - 1) * step).isoformat()[:length]


def _periods(found: Mapping[str, Mapping[str, int]], now: datetime, unit: str) -> Table:
    count, step, length = _SPANS[unit]
    names = [(now - place * step).isoformat()[:length] for place in reversed(range(count))]
    rows = [
        {
            "period": name,
            SEEN: found.get(name, {}).get(SEEN, 0),
            **{kind: found.get(name, {}).get(kind, 0) for kind in KINDS},
        }
        for name in names
    ]
    shown = (
        Column("period", unit.capitalize(), shown=lambda name: f"{name.replace('T', ' ')}{'h' * (unit == HOUR)}"),
        Column(SEEN, "Devices seen", shown=number, is_number=True),
        *(Column(kind, label.capitalize(), shown=number, is_number=True) for kind, label in KINDS.items()),
    )
    return Table("failures", f"Devices that failed, by {unit}", shown, rows)


def _periods_chart(rows: Sequence[Row], unit: str) -> Markup:
    series = [Series(label, f"kind-{kind}", [row[kind] for row in rows]) for kind, label in KINDS.items()]
    names = [row["period"].replace("T", " ") + "h" * (unit == HOUR) for row in rows]
    every = 12 if unit == HOUR else 7
    ticks = {
        place: (f"{name[5:10]} {name[11:]}" if unit == HOUR else name[5:])
        for place, name in enumerate(names)
        if place % every == 0
    }
    worst = max((sum(one.values[place] for one in series) for place in range(len(rows))), default=0)
    return columns(series, names, ticks, said=f"at most {worst:,} devices in one {unit}")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{name} {_value(one)}" for name, one in value.items())
    return " ".join(map(_value, value)) if isinstance(value, list) else str(value)


_NO_DEVICE = Markup("No device has sent its log yet: <code>pathweave logs BUNDLE --upload URL</code>.")
