"""Packaging jobs with their progress, and the log of one."""

from __future__ import annotations

import msgspec
from markupsafe import Markup

from server.jobs.store import Job, State
from server.jobs.workplace import ProgressReport
from server.page.asked import Asked
from server.page.figures import moment, short
from server.page.table import Column, Row, Table, View
from server.services import Services

_JOBS = 200
_MARKS = {State.DONE: "good", State.FAILED: "bad"}
_BUSY_S, _IDLE_S = 1, 5


def jobs(services: Services, asked: Asked) -> View:
    """The view at ``/page/jobs``: the newest first."""
    found = services.jobs.latest(_JOBS)
    table = Table("jobs", "Packaging jobs", _COLUMNS, [_row(services, job) for job in found], empty=_NO_JOB)
    return View("jobs", "Jobs", "jobs.html", (table,), {"table": table}, _refresh_s(*found))


def job(services: Services, asked: Asked, job_id: str) -> View:
    """The view of one job at ``/page/jobs/ID``."""
    found = services.jobs.find(job_id)
    row = _row(services, found)
    table = Table("job", "Job", _COLUMNS, [row])
    asked_for = [
        {"fact": name, "value": short(_words(value))}
        for name, value in msgspec.to_builtins(found.request).items()
        if value not in (None, {}, "")
    ]
    request = Table("request", "What was asked for", (Column("fact", "Fact"), Column("value", "Value")), asked_for)
    values = {"table": table, "row": row, "job": found, "request": request, "log": services.runner.log_of(found)}
    return View("jobs", row["bundle"], "job.html", (table, request), values, _refresh_s(found))


def _row(services: Services, job: Job) -> Row:
    progress = services.runner.progress_of(job)
    told = services.runner.why_waiting(job) or ("" if progress is None else _doing(progress))
    return {
        "bundle": job.private_name if job.published is None else f"{job.published_name} {job.published_version}",
        "model": job.request.model,
        "client": job.client,
        "created": job.created,
        "state": job.state.value,
        "progress": None if progress is None else progress.share,
        "details": short(job.error or told),
        "started": job.started,
        "finished": job.finished,
        "id": job.id,
    }


def _doing(progress: ProgressReport) -> str:
    return f"{progress.task}, {progress.share:.0%}" + (f", {progress.note}" if progress.note else "")


def _refresh_s(*jobs: Job) -> int:
    return _IDLE_S if all(job.state.over for job in jobs) else _BUSY_S


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value)


_COLUMNS = (
    Column("bundle", "Bundle", link=lambda row: f"/page/jobs/{row['id']}"),
    Column("model", "Model"),
    Column("client", "Asked for by"),
    Column("created", "At", shown=moment, style="still"),
    Column("state", "State", mark=lambda row: _MARKS.get(State(row["state"]), "soft")),
    Column("progress", "Progress", shown=lambda value: f"{value:.0%}", is_number=True, bar=lambda row: row["progress"]),
    Column("details", "Details", style="long"),
)
_NO_JOB = Markup("None yet: <code>POST /v1/jobs</code> has a model packaged here.")
