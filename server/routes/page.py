"""``GET /``: the status page of bundles, jobs, devices and events, and its table of jobs, which its script polls."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from flask import Blueprint, Response, render_template

from device_sdk import __version__
from device_sdk.logs.adaptation_log import Adapted, Calibrated, LogLine, Opened, PlanChosen
from server.access.route import Route
from server.access.scopes import Scope
from server.jobs.store import Job
from server.jobs.workplace import ProgressReport
from server.services import Services
from server.state.log_store import StoredLine

_LATEST_EVENTS = 50
_DEVICES = 200
_JOBS = 20
_TEXT = 400  # characters; longer texts, such as paths of hundreds of blocks, are truncated
_Row = dict[str, object]
_TEMPLATES = Path(__file__).parent / "templates"
_STYLE = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
_SCRIPT = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# Content security policy: only the page's own style and script, so names sent by devices cannot load or run anything.
# Other responses of this server have content types that browsers do not execute.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src 'sha256-{_STYLE_DIGEST}'",
        "script-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def routes(services: Services) -> Blueprint:
    """The routes of the page."""
    blueprint = Blueprint("page", __name__, template_folder="templates")
    route = partial(Route, scope=Scope.OPERATOR, for_people=True)
    blueprint.add_url_rule("/", "page", route(_page, services))
    blueprint.add_url_rule("/page/jobs", "jobs", route(_jobs, services))
    blueprint.add_url_rule("/page/script.js", "script", Route(_script, scope=None))
    return blueprint


def _page(services: Services) -> Response:
    logs = services.logs
    listing = services.bundles.listing()
    served = (one for versions in listing.bundles.values() for one in versions)
    names = {one.bundle.digest: f"{one.name} {one.version}" for one in served}
    dropped = {device.device: device.dropped for device in logs.devices()}
    return _html(
        "page.html",
        listing=listing,
        devices=_device_rows(logs.latest_of_each_event(_DEVICES), names, dropped),
        events=[_event(line) for line in logs.latest(_LATEST_EVENTS)],
        jobs=_job_rows(services),
        style=_STYLE,
        version=__version__,
        closed=services.gate.closed,
    )


def _jobs(services: Services) -> Response:
    return _html("jobs.html", jobs=_job_rows(services))


def _script() -> Response:
    return Response(_SCRIPT, mimetype="text/javascript", headers={"Cache-Control": "no-cache"})


def _job_rows(services: Services) -> list[_Row]:
    """A row for each job, the newest first. ``share``: progress of its current task, in [0, 1]; None if unknown."""
    jobs = services.jobs.latest(_JOBS)
    return [_job(job, services.runner.progress_of(job)) for job in jobs]


def _html(template: str, **values: Any) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return Response(render_template(template, **values), headers=headers)


def _device_rows(
    of_each_event: Iterable[StoredLine], names: Mapping[str, str], dropped: Mapping[str, int]
) -> list[_Row]:
    """A row for each device, the last seen first. Latencies in milliseconds; "" means unknown.

    ``of_each_event``: for each device its latest line of each kind of event, grouped by device; ``names``: of bundles,
    by digest; ``dropped``: by device, the number of lines that retention has dropped.
    """
    rows = [
        _device(name, list(lines), names, dropped.get(name, 0))
        for name, lines in groupby(of_each_event, lambda line: line.device)
    ]
    return sorted(rows, key=lambda row: str(row["last_seen"]), reverse=True)


def _job(job: Job, progress: ProgressReport | None) -> _Row:
    return {
        "id": job.id,
        "bundle": job.private_name if job.published is None else f"{job.published_name} {job.published_version}",
        "model": job.request.model,
        "state": job.state,
        "created": _shown_time(job.created),
        "share": None if progress is None else f"{progress.share:.3f}",
        "details": _cut(job.error or ("" if progress is None else _doing(progress))),
    }


def _doing(progress: ProgressReport) -> str:
    return f"{progress.task}, {progress.share:.0%}" + (f", {progress.note}" if progress.note else "")


def _device(device: str, lines: list[StoredLine], names: Mapping[str, str], dropped: int) -> _Row:
    lines.sort(key=lambda line: line.time)
    newest = lines[-1].line
    adapted = next((e for e in (line.line.event for line in reversed(lines)) if isinstance(e, Adapted)), None)
    budget_ms = None if adapted is None else adapted.budget_latency_ms
    return {
        "device": device,
        "bundle": names.get(newest.bundle, f"{newest.bundle[:12]}…"),
        "last_seen": _shown_time(max(line.received for line in lines)),
        "plan": _plan([line.line for line in lines]),
        "measured_ms": "" if adapted is None else f"{adapted.measured_ms:.3g}",
        "budget_ms": "" if budget_ms is None else f"{budget_ms:.3g}",
        "over_budget": adapted is not None and budget_ms is not None and adapted.measured_ms > budget_ms,
        "dropped": f"{dropped:,}" if dropped else "",
    }


def _plan(lines: list[LogLine]) -> str:
    """The subnet and exits in use, or the kind of the plan, from the latest line that names any."""
    for line in reversed(lines):
        event = line.event
        if isinstance(event, PlanChosen):
            asked = f", asks about {event.share_asked:.0%}" if event.share_asked else ""
            early = f", {event.share_asked_early:.0%} from exits" if event.share_asked_early else ""
            return _cut(f"{event.plan_kind}{asked}{early}: {event.subnet}")
        if isinstance(event, Calibrated) and event.exits:
            return _cut(f"{event.subnet}, exits {' '.join(event.exits)}")
        if isinstance(event, (Opened, Adapted, Calibrated)):
            return _cut(event.subnet)
    return ""


def _event(line: StoredLine) -> _Row:
    details = msgspec.to_builtins(line.line.event)
    kind = details.pop("event")
    shown = ", ".join(f"{name} {_value(value)}" for name, value in details.items() if value not in (None, [], {}, ""))
    return {"time": _shown_time(line.time), "device": line.device, "event": kind, "details": _cut(shown)}


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{name} {_value(one)}" for name, one in value.items())
    return " ".join(map(_value, value)) if isinstance(value, list) else str(value)


def _shown_time(time: str) -> str:
    return time[:19].replace("T", " ")


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"
