"""Leases of jobs: which machine runs a job, and until when. Time is the database's, so clocks may differ.

A lease has a number. Every change of a running job names it, so that a machine that lost the job changes
nothing any more (fencing).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from server.access.shared_limits import DatabaseTime, database_time_s
from server.jobs.job_request import JobRequest
from server.jobs.store import ALL_JOBS, Job, State, job_of
from server.state.database import Database, insert, utc_now
from server.state.tables import JOB_MACHINES, JOBS

_log = logging.getLogger(__name__)

LEASE_S = 30.0
MOST_LOST = 3  # leases of a job in a row that run out before it fails
_PUBLICATION_S = 600.0  # a bundle is stored again and signed in it
_MACHINE_KNOWN_S = 86_400.0  # after it was seen last
_PRIVATE_VERSION = 1  # in the manifest that a worker writes; publishing sets the served one


class Leases:
    """The leases of one machine, ``owner``. Thread-safe.

    Raises:
        StorageError: by every method, if the database cannot be read or written.
    """

    def __init__(
        self,
        database: Database,
        owner: str,
        *,
        lease_s: float = LEASE_S,
        now: Callable[[], datetime] = utc_now,
        now_s: DatabaseTime = database_time_s,
    ) -> None:
        self._database, self.owner, self.lease_s, self._now, self._now_s = database, owner, lease_s, now, now_s

    def take(
        self, *, tags: Collection[str] = (), data: Collection[str] | None = None, busy: Collection[str] = ()
    ) -> tuple[Job, str | None] | None:
        """The first job that waits, or whose lease has run out, and that this machine can run; None without one.

        ``data``: names of its data sets (None: all); ``busy``: jobs to leave alone. A job whose leases ran out
        ``MOST_LOST`` times in a row fails instead. Returns it as it is now, and who had it before.
        """
        with self._database.reading() as connection:
            now_s = self._now_s(connection)
            columns = [JOBS.c[name] for name in ("id", "request", "state", "attempt", "lost", "owner")]
            query = sa.select(*columns).where(_is_free(now_s)).order_by(JOBS.c.priority.desc(), JOBS.c.number)
            found = connection.execute(query).all()
        for row in found:
            if row.id not in busy and _fits(msgspec.json.decode(row.request, type=JobRequest), tags, data):
                job = self._take(row)
                if job is not None:
                    return job, row.owner
        return None

    def renew(self, job: Job, *, progress: str | None = None, log: str | None = None) -> bool:
        """Keep a job, and store how far it is (None: nothing new); False if it was cancelled or is another's."""
        told = {name: value for name, value in (("progress", progress), ("log", log)) if value is not None}
        with self._database.writing() as connection:
            until_s = self._now_s(connection) + self.lease_s
            changed = sa.update(JOBS).where(_is_held(job, self.owner)).values(lease_until_s=until_s, **told)
            return bool(connection.execute(changed).rowcount)

    def give_back(self, job: Job, *, lost: bool = False, log: str | None = None) -> bool:
        """Have a job go on at once, here or elsewhere; False if it is not held. ``lost``: it counts as run out."""
        free: dict[str, object] = {"state": State.QUEUED, "worker": None, "digest": None, "lease_until_s": None}
        free["lost"] = JOBS.c.lost + 1 if lost else 0
        if log is not None:
            free["log"] = log
        with self._database.writing() as connection:
            return bool(connection.execute(sa.update(JOBS).where(_is_held(job, self.owner)).values(**free)).rowcount)

    def mine(self) -> list[Job]:
        """Running jobs that this machine has or had last, also from before it was started again."""
        owned = sa.or_(JOBS.c.owner == self.owner, JOBS.c.owner.is_(None))  # None: from before there were leases
        query = ALL_JOBS.where(JOBS.c.state == State.RUNNING, owned).order_by(JOBS.c.number)
        with self._database.reading() as connection:
            return [job_of(row) for row in connection.execute(query).all()]

    def take_publication(self, job_id: str) -> bool:
        """Be the one who publishes the bundle of a job, for a while; False if another does."""
        with self._database.writing() as connection:
            now_s = self._now_s(connection)
            free = sa.or_(JOBS.c.lease_until_s.is_(None), JOBS.c.lease_until_s <= now_s, JOBS.c.owner == self.owner)
            changed = sa.update(JOBS).where(JOBS.c.id == job_id, JOBS.c.state == State.DONE, free)
            changed = changed.values(owner=self.owner, lease_until_s=now_s + _PUBLICATION_S)
            return bool(connection.execute(changed).rowcount)

    def end_publication(self, job_id: str) -> None:
        """The bundle is published, or could not be."""
        mine = sa.and_(JOBS.c.id == job_id, JOBS.c.state == State.DONE, JOBS.c.owner == self.owner)
        with self._database.writing() as connection:
            connection.execute(sa.update(JOBS).where(mine).values(lease_until_s=None))

    def announce(self, *, tags: Collection[str], data: Collection[str]) -> None:
        """Say what this machine has. Those that were not seen for a day are forgotten."""
        with self._database.writing() as connection:
            now_s = self._now_s(connection)
            told = {"tags": _names(tags), "data": _names(data), "seen_s": now_s}
            row = insert(connection, JOB_MACHINES).values(owner=self.owner, **told)
            connection.execute(row.on_conflict_do_update(index_elements=["owner"], set_=told))
            old = JOB_MACHINES.c.seen_s < now_s - _MACHINE_KNOWN_S
            connection.execute(sa.delete(JOB_MACHINES).where(old))

    def _take(self, row: Any) -> Job | None:
        """Take a job as it was read; None if another machine was quicker, or the job has failed."""
        lost = row.lost + (row.state == State.RUNNING)
        time = self._now().isoformat(timespec="milliseconds")
        with self._database.writing() as connection:
            now_s = self._now_s(connection)
            free = sa.and_(JOBS.c.id == row.id, JOBS.c.attempt == row.attempt, _is_free(now_s))
            if lost >= MOST_LOST:
                failed = _failed(lost) | {"lost": lost, "finished": time}
                if connection.execute(sa.update(JOBS).where(free).values(**failed)).rowcount:
                    _log.warning("job %s failed: %s", row.id, failed["error"])
                return None
            taken = {
                "state": State.RUNNING,
                "attempt": row.attempt + 1,
                "lost": lost,
                "owner": self.owner,
                "worker": None,
                "progress": None,
                "lease_until_s": now_s + self.lease_s,
                "version": sa.func.coalesce(JOBS.c.version, _PRIVATE_VERSION),
                "started": sa.func.coalesce(JOBS.c.started, time),
            }
            if not connection.execute(sa.update(JOBS).where(free).values(**taken)).rowcount:
                return None
            return job_of(connection.execute(ALL_JOBS.where(JOBS.c.id == row.id)).one())


@dataclass(frozen=True)
class Machine:
    """Tags and names of data sets of a machine that runs jobs."""

    tags: Collection[str]
    data: Collection[str]


def machines(
    database: Database, *, within_s: float | None = None, now_s: DatabaseTime = database_time_s
) -> list[Machine]:
    """Machines that share the jobs of a database and were seen within ``within_s``, by default a day (StorageError)."""
    row = JOB_MACHINES.c
    query = sa.select(row.tags, row.data)  # others are deleted
    with database.reading() as connection:
        if within_s is not None:
            query = query.where(row.seen_s >= now_s(connection) - within_s)
        found = connection.execute(query).all()
    return [Machine(*(msgspec.json.decode(text, type=list[str]) for text in one)) for one in found]


def data_of_machines(database: Database) -> set[str]:
    """Names of the data sets that machines have (StorageError)."""
    return {name for one in machines(database) for name in one.data}


def _is_free(now_s: float) -> sa.ColumnElement[bool]:
    ran_out = sa.and_(JOBS.c.state == State.RUNNING, JOBS.c.lease_until_s <= now_s)
    return sa.or_(JOBS.c.state == State.QUEUED, ran_out)


def _is_held(job: Job, owner: str) -> sa.ColumnElement[bool]:
    """The lease of this number is still the newest one."""
    same_owner = sa.or_(JOBS.c.owner == owner, JOBS.c.owner.is_(None))
    return sa.and_(JOBS.c.id == job.id, JOBS.c.state == State.RUNNING, JOBS.c.attempt == job.attempt, same_owner)


def _fits(request: JobRequest, tags: Collection[str], data: Collection[str] | None) -> bool:
    has_data = data is None or {request.data, request.validation} <= set(data)
    return has_data and set(request.needs) <= set(tags)


def _failed(lost: int) -> dict[str, object]:
    return {
        "state": State.FAILED,
        "error": f"{lost} machines in a row stopped while they ran the job",
        "hint": "it may take more memory than they have; see its log",
        "worker": None,
        "lease_until_s": None,
        "progress": None,
        "checkpoint": None,
    }


def _names(names: Collection[str]) -> str:
    return msgspec.json.encode(sorted(names)).decode()
