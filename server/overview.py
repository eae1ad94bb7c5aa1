"""The rows of the status page: jobs, devices and the latest events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

import msgspec

from device_sdk.logs.adaptation_log import Adapted, Calibrated, LogLine, Opened, PlanChosen
from server.jobs.store import Job
from server.jobs.workplace import ProgressReport
from server.state.catalogue import Listing
from server.state.log_store import StoredLine

LATEST_EVENTS = 50
DEVICES = 200
JOBS = 20
_TEXT = 400  # characters; longer texts, such as paths of hundreds of blocks, are truncated
Row = dict[str, object]


def bundle_names(listing: Listing) -> dict[str, str]:
    """Name and version of each bundle, by digest."""
    served = (one for versions in listing.bundles.values() for one in versions)
    return {one.bundle.digest: f"{one.name} {one.version}" for one in served}


def device_rows(of_each_event: Iterable[StoredLine], names: Mapping[str, str], dropped: Mapping[str, int]) -> list[Row]:
    """A row for each device, the last seen first. Latencies in milliseconds; "" means unknown.

    ``of_each_event``: for each device its latest line of each kind of event, grouped by device; ``names``: of bundles,
    by digest; ``dropped``: by device, the number of lines that retention has dropped.
    """
    rows = [
        _device(name, list(lines), names, dropped.get(name, 0))
        for name, lines in groupby(of_each_event, lambda line: line.device)
    ]
    return sorted(rows, key=lambda row: str(row["last_seen"]), reverse=True)


def event_rows(latest: Iterable[StoredLine]) -> list[Row]:
    """A row for each line of a log, in their order."""
    return [_event(line) for line in latest]


def job_rows(jobs: Iterable[tuple[Job, ProgressReport | None]]) -> list[Row]:
    """A row for each job, in their order. ``share``: progress of its current task, in [0, 1]; None if unknown."""
    return [
        {
            "id": job.id,
            "bundle": job.private_name if job.published is None else f"{job.published_name} {job.published_version}",
            "model": job.request.model,
            "state": job.state,
            "created": _shown_time(job.created),
            "share": None if progress is None else f"{progress.share:.3f}",
            "details": _cut(job.error or ("" if progress is None else _doing(progress))),
        }
        for job, progress in jobs
    ]


def _doing(progress: ProgressReport) -> str:
    return f"{progress.task}, {progress.share:.0%}" + (f", {progress.note}" if progress.note else "")


def _device(device: str, lines: list[StoredLine], names: Mapping[str, str], dropped: int) -> Row:
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


def _event(line: StoredLine) -> Row:
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
