"""The jobs in the database, and changes of their state: queued → running → done or failed; cancelled before that."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

import msgspec

from device_sdk.files.atomic import decode_json
from server.errors import NotFoundError, QueueFullError
from server.jobs.job_request import JobRequest
from server.state.database import Database, utc_now


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
    that name; ``published``: when it was.
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

    @property
    def private_name(self) -> str:
        """The name of its bundle until it is published, in the namespace of its client. Never served."""
        return f"jobs/{self.client}/{self.request.name}"


_COLUMNS = ", ".join(field.name for field in fields(Job))
NO_JOB, NO_JOB_HINT = "there is no such job", "GET /v1/jobs lists them"  # the same for jobs of other clients
_UNFINISHED = "state IN ('queued', 'running')"


class JobStore:
    """The jobs of one database. Thread-safe.

    Raises:
        StorageError: by every method, if the database cannot be read or written.
    """

    def __init__(self, database: Database, *, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    def add(self, job_id: str, request: JobRequest, *, client: str, weights_sha256: str | None, max_queued: int) -> Job:
        """Queue a job (QueueFullError if ``max_queued`` are waiting)."""
        row = (job_id, client, msgspec.json.encode(request), weights_sha256, State.QUEUED, self._time())
        with self._database.writing() as connection:
            self._require_place(connection, max_queued)
            columns = "id, client, request, weights_sha256, state, created"
            connection.execute(f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)
        return self.find(job_id)

    def require_place(self, max_queued: int) -> None:
        """Raise QueueFullError if ``max_queued`` jobs are waiting."""
        with self._database.reading() as connection:
            self._require_place(connection, max_queued)

    def find(self, job_id: str) -> Job:
        """The job of this id (NotFoundError if there is none)."""
        jobs = self._select("WHERE id = ?", job_id)
        if not jobs:
            raise NotFoundError(NO_JOB, hint=NO_JOB_HINT)
        return jobs[0]

    def latest(self, count: int, *, client: str | None = None) -> list[Job]:
        """The newest jobs first, of all clients or only of ``client``."""
        return self._select("WHERE coalesce(client = ?, TRUE) ORDER BY number DESC LIMIT ?", client, count)

    def in_state(self, state: State) -> list[Job]:
        """The jobs in ``state``, the oldest first."""
        return self._select("WHERE state = ? ORDER BY number", state)

    def start(self, job_id: str, *, version: int) -> bool:
        """Queued becomes running; False if it is not queued."""
        change = "state = 'running', version = ?, started = coalesce(started, ?)"
        return self._change(job_id, "queued", change, version, self._time())

    def note_worker(self, job_id: str, worker: str) -> bool:
        """Store the worker process of a running job."""
        return self._change(job_id, "running", "worker = ?", worker)

    def queue_again(self, job_id: str) -> bool:
        """Running becomes queued, since its worker has ended. It keeps its version, which its saved work belongs to."""
        return self._change(job_id, "running", "state = 'queued', worker = NULL, digest = NULL")

    def finish(self, job_id: str, digest: str) -> bool:
        """Running becomes done, with a bundle of this digest; False if it is not running."""
        change = "state = 'done', digest = ?, worker = NULL, finished = ?"
        return self._change(job_id, "running", change, digest, self._time())

    def fail(self, job_id: str, error: str, hint: str | None = None) -> bool:
        """Running becomes failed; False if it is not running."""
        change = "state = 'failed', error = ?, hint = ?, worker = NULL, finished = ?"
        return self._change(job_id, "running", change, error, hint, self._time())

    def note_publication(self, job_id: str, *, name: str, version: int, digest: str, by: str) -> bool:
        """Store name, version and digest before publication, so that it is recognised after a kill."""
        change = "published_name = ?, published_version = ?, digest = ?, published_by = ?"
        return self._change(job_id, "done", change, name, version, digest, by)

    def mark_published(self, job_id: str) -> bool:
        """Store that the noted publication has taken place."""
        return self._change(job_id, "done", "published = ?", self._time())

    def cancel(self, job_id: str) -> bool:
        """Queued or running becomes cancelled; False if it is neither."""
        change = "state = 'cancelled', worker = NULL, finished = ?"
        return any(self._change(job_id, state, change, self._time()) for state in ("queued", "running"))

    def forget_old(self, keep: int) -> list[str]:
        """Delete all finished jobs but the ``keep`` newest of each client; returns their ids."""
        query = f"""
            SELECT id FROM (
                SELECT id, row_number() OVER (PARTITION BY client ORDER BY number DESC) AS place
                FROM jobs WHERE NOT ({_UNFINISHED})
            ) WHERE place > ?
        """
        with self._database.writing() as connection:
            ids = [row[0] for row in connection.execute(query, (keep,)).fetchall()]
            connection.executemany("DELETE FROM jobs WHERE id = ?", [(job_id,) for job_id in ids])
        return ids

    def ids(self) -> set[str]:
        """The ids of all jobs."""
        with self._database.reading() as connection:
            return {row[0] for row in connection.execute("SELECT id FROM jobs").fetchall()}

    def _require_place(self, connection: sqlite3.Connection, max_queued: int) -> None:
        [queued] = connection.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()
        if queued >= max_queued:
            raise QueueFullError(f"{queued} jobs are waiting", hint="try again when one of them has started")

    def _change(self, job_id: str, before: str, change: str, *values: object) -> bool:
        # Compare and set: of two concurrent changes, only one succeeds.
        with self._database.writing() as connection:
            statement = f"UPDATE jobs SET {change} WHERE id = ? AND state = ?"
            return bool(connection.execute(statement, (*values, job_id, before)).rowcount)

    def _select(self, condition: str, *values: object) -> list[Job]:
        with self._database.reading() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM jobs {condition}", values).fetchall()
        return [
            Job(job_id, client, decode_json(request, JobRequest), weights, State(state), *rest)
            for job_id, client, request, weights, state, *rest in rows
        ]

    def _time(self) -> str:
        return self._now().isoformat(timespec="milliseconds")
