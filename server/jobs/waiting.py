"""Reasons why jobs wait, in one line for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from server.access.shared_limits import DatabaseTime, database_time_s
from server.jobs.job_request import JobRequest
from server.jobs.store import State
from server.state.database import Database
from server.state.tables import JOB_MACHINES, JOBS

_SEEN_S = 60.0  # machines announce themselves every 15 s


@dataclass(frozen=True)
class Offer:
    """Tags and names of data sets of a machine that runs jobs."""

    tags: Collection[str]
    data: Collection[str]


def why_waiting(request: JobRequest, machines: Sequence[Offer], *, before: int) -> str:
    """The reason, from what machines have and the number of jobs ``before`` this one. Pure."""
    if not machines:
        return "no machine runs jobs now: start pathweave worker"
    tagged = [one for one in machines if set(request.needs) <= set(one.tags)]
    if not tagged:
        wanted = ", ".join(request.needs)
        return f"no machine that runs now has the tags {wanted}: start pathweave worker --tag"
    data = {request.data, request.validation}
    if not any(data <= set(one.data) for one in tagged):
        return f"no machine that runs now and fits has the data {' and '.join(sorted(data))}"
    ahead = {0: "it is the next one", 1: "one job is before it"}.get(before, f"{before} jobs are before it")
    return f"all machines that fit are busy; {ahead}"


def machines_now(database: Database, *, now_s: DatabaseTime = database_time_s) -> list[Offer]:
    """Machines that share the jobs of a database and were seen within a minute (StorageError)."""
    row = JOB_MACHINES.c
    with database.reading() as connection:
        query = sa.select(row.tags, row.data).where(row.seen_s >= now_s(connection) - _SEEN_S)
        found = connection.execute(query).all()
    return [Offer(*(msgspec.json.decode(text, type=list[str]) for text in one)) for one in found]


def jobs_before(database: Database, job_id: str) -> int:
    """Waiting jobs that are taken before one (StorageError)."""
    one, other = JOBS.alias(), JOBS.alias()
    earlier = sa.and_(other.c.priority == one.c.priority, other.c.number < one.c.number)
    query = (
        sa.select(sa.func.count())
        .select_from(one.join(other, sa.or_(other.c.priority > one.c.priority, earlier)))
        .where(one.c.id == job_id, other.c.state == State.QUEUED)
    )
    with database.reading() as connection:
        return int(connection.execute(query).scalar_one())
