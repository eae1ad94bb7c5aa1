"""Reasons why jobs wait, in one line for people."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from server.jobs.job_request import JobRequest
from server.jobs.leases import Machine
from server.jobs.store import State
from server.state.database import Database
from server.state.tables import JOBS

SEEN_S = 60.0  # within which a machine must have been seen to count; they announce themselves every 15 s


def why_waiting(request: JobRequest, machines: Sequence[Machine], *, before: int) -> str:
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
