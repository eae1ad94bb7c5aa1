"""The jobs in the database, and changes of their state: queued → running → done or failed; cancelled before that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from device_sdk.files.atomic import decode_json
from server.errors import NotFoundError, QueueFullError
from server.jobs.job_request import JobRequest
from server.state.database import Database, utc_now
from server.state.tables import JOBS


class State(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """True if the state is final."""
        return self not in (State.QUEUED, State.RUNNING)


@dataclass(frozen=True)
class Job:
    """A job in the database. Times are ISO 8601 in UTC; ``worker``: ``processes.mark_of`` it.

    ``version``: in the manifest that the worker writes, set at the first start. ``digest``: of the manifest, once the
    bundle is made; publishing changes it. ``published_…``: set just before the bundle is published as that version of
    that name; ``published``: when it was. ``attempt``: number of the lease, which changes of a running job name;
    ``owner``: the machine that has it, or had it last; ``progress``: JSON, where machines share the jobs.
    """

    id: str
    client: str
    request: JobRequest
    weights_sha256: str | None
    state: State
    version: int | None
    worker: str | None
    digest: str | None
    error: str | None
    hint: str | None
    created: str
    started: str | None
    finished: str | None
    published_name: str | None
    published_version: int | None
    published_by: str | None
    published: str | None
    attempt: int
    owner: str | None
    progress: str | None

    @property
    def private_name(self) -> str:
        """The name of its bundle until it is published, in the namespace of its client. Never served."""
        return f"jobs/{self.client}/{self.request.name}"


_COLUMNS = [JOBS.c[field.name] for field in fields(Job)]
ALL_JOBS = sa.select(*_COLUMNS)
NO_JOB, NO_JOB_HINT = "there is no such job", "GET /v1/jobs lists them"  # the same for jobs of other clients
_ENDED: dict[str, object] = {"worker": None, "lease_until_s": None, "progress": None, "checkpoint": None}
_QUEUED = sa.select(sa.func.count()).where(JOBS.c.state == State.QUEUED)


class JobStore:
    """The jobs of one database. Thread-safe.

    Raises:
        StorageError: by every method, if the database cannot be read or written.
    """

    def __init__(self, database: Database, *, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    @property
    def database(self) -> Database:
        """The database that has the jobs."""
        return self._database

    def add(self, job_id: str, request: JobRequest, *, client: str, weights_sha256: str | None, max_queued: int) -> Job:
        """Queue a job (QueueFullError if ``max_queued`` are waiting)."""
        row = {
            "id": job_id,
            "client": client,
            "request": msgspec.json.encode(request),
            "weights_sha256": weights_sha256,
            "state": State.QUEUED,
            "priority": request.priority,
            "created": self._time(),
        }
        with self._database.writing() as connection:
            self._require_place(connection, max_queued)
            connection.execute(sa.insert(JOBS), row)
        return self.find(job_id)

    def require_place(self, max_queued: int) -> None:
        """Raise QueueFullError if ``max_queued`` jobs are waiting."""
        with self._database.reading() as connection:
            self._require_place(connection, max_queued)

    def find(self, job_id: str) -> Job:
        """The job of this id (NotFoundError if there is none)."""
        jobs = self._select(ALL_JOBS.where(JOBS.c.id == job_id))
        if not jobs:
            raise NotFoundError(NO_JOB, hint=NO_JOB_HINT)
        return jobs[0]

    def latest(self, count: int, *, client: str | None = None) -> list[Job]:
        """The newest jobs first, of all clients or only of ``client``."""
        query = ALL_JOBS if client is None else ALL_JOBS.where(JOBS.c.client == client)
        return self._select(query.order_by(JOBS.c.number.desc()).limit(count))

    def in_state(self, state: State) -> list[Job]:
        """The jobs in ``state``, the oldest first."""
        return self._select(ALL_JOBS.where(JOBS.c.state == state).order_by(JOBS.c.number))

    def note_worker(self, job: Job, worker: str) -> bool:
        """Store the worker process of a running job."""
        return self._change_leased(job, worker=worker)

    def note_checkpoint(self, job: Job, checkpoint: str) -> bool:
        """Store what a running job resumes from on any machine; False if the lease is another's."""
        return self._change_leased(job, checkpoint=checkpoint)

    def finish(self, job: Job, digest: str, *, bundle: str | None = None, log: str | None = None) -> bool:
        """Running becomes done, with a bundle of this digest; False if the lease is another's."""
        return self._end(job, log, state=State.DONE, digest=digest, bundle=bundle)

    def fail(self, job: Job, error: str, hint: str | None = None, *, log: str | None = None) -> bool:
        """Running becomes failed; False if the lease is another's."""
        return self._end(job, log, state=State.FAILED, error=storable(error), hint=hint and storable(hint))

    def note_publication(self, job_id: str, *, name: str, version: int, digest: str, by: str) -> bool:
        """Store name, version and digest before publication, so that it is recognised after a kill."""
        return self._change(
            job_id, State.DONE, published_name=name, published_version=version, digest=digest, published_by=by
        )

    def mark_published(self, job_id: str) -> bool:
        """Store that the noted publication has taken place."""
        return self._change(job_id, State.DONE, published=self._time())

    def cancel(self, job_id: str) -> bool:
        """Queued or running becomes cancelled; False if it is neither."""
        change = {**_ENDED, "state": State.CANCELLED, "log": None, "finished": self._time()}
        return any(self._change(job_id, state, **change) for state in (State.QUEUED, State.RUNNING))

    def log_of(self, job_id: str) -> str:
        """The end of the log that its machine stored; "" if there is none."""
        return self._text(job_id, JOBS.c.log) or ""

    def checkpoint_of(self, job_id: str) -> str | None:
        """The stored files that a job resumes from, as ``note_checkpoint`` has them; None if there are none."""
        return self._text(job_id, JOBS.c.checkpoint)

    def bundle_of(self, job_id: str) -> str | None:
        """The stored files of a bundle that is not published, as ``finish`` has them; None if there are none."""
        return self._text(job_id, JOBS.c.bundle)

    def forget_old(self, keep: int) -> list[str]:
        """Delete all finished jobs but the ``keep`` newest of each client; returns their ids."""
        jobs = JOBS.c
        place = sa.func.row_number().over(partition_by=jobs.client, order_by=jobs.number.desc())
        finished = sa.select(jobs.id, place.label("place")).where(jobs.state.not_in((State.QUEUED, State.RUNNING)))
        ranked = finished.subquery()
        with self._database.writing() as connection:
            ids = list(connection.execute(sa.select(ranked.c.id).where(ranked.c.place > keep)).scalars())
            connection.execute(sa.delete(JOBS).where(jobs.id.in_(ids)))
        return ids

    def counts(self) -> dict[str, int]:
        """The number of jobs in each state."""
        query = sa.select(JOBS.c.state, sa.func.count()).group_by(JOBS.c.state)
        with self._database.reading() as connection:
            found: dict[str, int] = dict(connection.execute(query).all())
        return {state.value: found.get(state.value, 0) for state in State}

    def ids(self) -> set[str]:
        """The ids of all jobs."""
        with self._database.reading() as connection:
            return set(connection.execute(sa.select(JOBS.c.id)).scalars())

    def ids_with_files(self) -> set[str]:
        """The jobs whose stored files are needed: not over, or with a bundle that is not published."""
        unpublished = sa.and_(JOBS.c.state == State.DONE, JOBS.c.published.is_(None))
        query = sa.select(JOBS.c.id).where(sa.or_(JOBS.c.state.in_((State.QUEUED, State.RUNNING)), unpublished))
        with self._database.reading() as connection:
            return set(connection.execute(query).scalars())

    def _require_place(self, connection: sa.Connection, max_queued: int) -> None:
        queued = connection.execute(_QUEUED).scalar_one()
        if queued >= max_queued:
            raise QueueFullError(f"{queued} jobs are waiting", hint="try again when one of them has started")

    def _end(self, job: Job, log: str | None, **values: object) -> bool:
        told = {} if log is None else {"log": log}
        return self._change_leased(job, **{**_ENDED, **values, **told}, finished=self._time())

    def _change_leased(self, job: Job, **values: object) -> bool:
        return self._change(job.id, State.RUNNING, JOBS.c.attempt == job.attempt, **values)

    def _change(self, job_id: str, before: State, *conditions: sa.ColumnElement[bool], **values: object) -> bool:
        # Compare and set: of two concurrent changes, only one succeeds.
        where = (JOBS.c.id == job_id, JOBS.c.state == before, *conditions)
        with self._database.writing() as connection:
            return bool(connection.execute(sa.update(JOBS).where(*where).values(**values)).rowcount)

    def _text(self, job_id: str, column: sa.Column[Any]) -> str | None:
        with self._database.reading() as connection:
            found: str | None = connection.execute(sa.select(column).where(JOBS.c.id == job_id)).scalar()
        return found

    def _select(self, query: sa.Select[Any]) -> list[Job]:
        with self._database.reading() as connection:
            return [job_of(row) for row in connection.execute(query).all()]

    def _time(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


def job_of(row: Sequence[Any]) -> Job:
    """The job in a row of ``ALL_JOBS``."""
    job_id, client, request, weights, state, *rest = row
    return Job(job_id, client, decode_json(request, JobRequest), weights, State(state), *rest)


def storable(text: str) -> str:
    """Text without the character that PostgreSQL refuses."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
