"""Rollouts: the latest of all bundles, and one by stage and signal. Commands change them; a page changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from server.errors import NotFoundError
from server.page.asked import Asked
from server.page.figures import moment, number, share, short, size
from server.page.table import Column, Row, Table, View
from server.services import Services

_MARKS = {"done": "good", "reversing": "bad", "reversed": "bad", "paused": "bad"}


def rollouts(services: Services, asked: Asked) -> View:
    """The view at ``/page/rollouts``: the newest first."""
    rows = [_head(one) for one in services.rollouts.listing()]
    table = Table("rollouts", "Rollouts", _COLUMNS, rows, empty=_NO_ROLLOUT)
    return View("rollouts", "Rollouts", "rollouts.html", (table,), {"table": table})


def rollout(services: Services, asked: Asked, rollout_number: str) -> View:
    """The view of one rollout at ``/page/rollouts/NUMBER`` (NotFoundError if there is none)."""
    if not (rollout_number.isascii() and rollout_number.isdigit() and len(rollout_number) < 16):
        raise NotFoundError("rollouts have numbers from 1 on", hint="/page/rollouts lists them")
    report = services.rollouts.report(int(rollout_number))
    head = _head(report)
    facts = Table("rollout", "State", (Column("fact", "Fact"), Column("value", "Value")), _facts(report, head))
    stages = Table("stages", "Stages", _STAGE_COLUMNS, [_stage(report, at) for at in range(len(report["stages"]))])
    signals = Table("signals", "What devices report", _SIGNAL_COLUMNS, [_signal(one) for one in report["signals"]])
    values = {"head": head, "facts": facts, "stages": stages, "signals": signals}
    return View("rollouts", head["rollout"], "rollout.html", (facts, stages, signals), values)


def _head(report: Mapping[str, Any]) -> dict[str, Any]:
    at = f"{report['stage'] + 1} of {report['stages_planned']}"
    return {
        "rollout": f"{report['bundle']} {report['baseline']} → {report['version']}",
        "state": report["state"],
        "stage": at + (", waits for approval" if report["waits_for_approval"] else ""),
        "why": short(report["why"]),
        "started": report["started"],
        "since": report["since"],
        "number": report["number"],
    }


def _facts(report: Mapping[str, Any], head: Row) -> list[Row]:
    against = report["against"]
    facts = {
        "State": head["state"],
        "Why": head["why"],
        "Stage": head["stage"],
        "Compared with": f"version {report['baseline'] if against is None else against}",
        "Devices that are known": number(report["fleet_devices"]),
        "Of them on the new version": None if report["share"] is None else share(report["share"]),
        "Way back": "signed" if report["rollback"] else "none: devices that have the version keep it",
        "Started": moment(report["started"]),
        "In this stage since": moment(report["since"]),
    }
    return [{"fact": name, "value": value} for name, value in facts.items() if value not in (None, "")]


def _stage(report: Mapping[str, Any], at: int) -> Row:
    stage = report["stages"][at]
    new = stage["devices"].get(str(report["version"]), {"got": 0, "run": 0})
    tags = "".join(f", {name}={value}" for name, value in stage["tags"].items())
    names = report["plan"]["stages"][at].get("devices", ())
    named = f", {len(names)} by name" if names else ""
    past = at < report["stage"] or report["state"] == "done"
    return {
        "stage": at + 1,
        "adds": f"{stage['percent']:g} %{tags}{named}",
        "state": "past" if past else "now" if at == report["stage"] else "later",
        "known": stage["known_devices"],
        "bytes": stage["bytes"],
        "got": new["got"],
        "run": new["run"],
        "hold": f"{stage['hold_minutes']:g} min, {stage['min_devices']} devices",
        "approval": stage["approval"],
    }


def _signal(found: Mapping[str, Any]) -> Row:
    said = "halts" if found["halts"] else "doubtful" if found["doubtful"] else "within"
    return {**found, "group": found["tag"] or "all devices", "said": said}


def _percent(value: float) -> str:
    return f"{100 * value:+.1f}%" if value else "0%"


_COLUMNS = (
    Column("rollout", "Rollout", link=lambda row: f"/page/rollouts/{row['number']}"),
    Column("state", "State", mark=lambda row: _MARKS.get(row["state"], "soft")),
    Column("stage", "Stage"),
    Column("why", "Why", style="long"),
    Column("started", "Started", shown=moment, style="still"),
)
_STAGE_COLUMNS = (
    Column("stage", "Stage", is_number=True),
    Column("adds", "Adds"),
    Column("state", "State", mark=lambda row: "good" if row["state"] == "past" else None),
    Column("known", "Known devices", shown=number, is_number=True),
    Column("bytes", "To deliver", shown=size, is_number=True),
    Column("got", "Got it", shown=number, is_number=True),
    Column("run", "Run it", shown=number, is_number=True),
    Column("hold", "Lasts at least"),
    Column("approval", "Begins by"),
)
_SIGNAL_COLUMNS = (
    Column("signal", "Signal"),
    Column("group", "Devices"),
    Column("devices", "Reports", shown=number, is_number=True),
    Column("value", "Value", shown=_percent, is_number=True),
    Column("low", "From", shown=_percent, is_number=True),
    Column("high", "To", shown=_percent, is_number=True),
    Column("limit", "Limit", shown=_percent, is_number=True),
    Column("said", "Found", mark=lambda row: {"halts": "bad", "doubtful": "bad"}.get(row["said"], "good")),
)
_NO_ROLLOUT = Markup("None yet: <code>pathweave admin rollouts start URL NAME VERSION --stage 1 --stage 100</code>.")
