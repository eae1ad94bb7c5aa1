"""The services behind the routes, built from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from device_sdk.errors import UsageError
from device_sdk.files.atomic import storage_errors
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.port import Runtime
from server.catalogue import Catalogue
from server.database import Database
from server.enrolment import AttemptLimit, Enrolments
from server.inference.models import ModelCache
from server.inference.queue import BatchQueue
from server.jobs.job_user import JobUser
from server.jobs.limits import JobLimits
from server.jobs.runner import JobRunner
from server.jobs.store import JobStore
from server.log_store import LogStore
from server.settings import Settings
from server.tokens import Gate, TokenStore, utc_now


@dataclass(frozen=True)
class Services:
    """All services of a server. ``close`` stops inference and the workers of jobs, and closes the database."""

    settings: Settings
    database: Database
    catalogue: Catalogue
    gate: Gate
    tokens: TokenStore
    enrolments: Enrolments
    enrolment_attempts: AttemptLimit
    logs: LogStore
    models: ModelCache
    queue: BatchQueue
    jobs: JobStore
    runner: JobRunner

    def close(self) -> None:
        """Stop all workers. Idempotent."""
        self.queue.close()
        self.runner.close()
        self.database.close()


def make_services(
    settings: Settings, *, runtime: Runtime | None = None, now: Callable[[], datetime] = utc_now
) -> Services:
    """The services of one server.

    Raises:
        StorageError: the data folder cannot be used.
    """
    database, catalogue = Database(settings.database), Catalogue(settings.folder)
    jobs, tokens = JobStore(database, now=now), TokenStore(database, now=now)
    return Services(
        settings=settings,
        database=database,
        catalogue=catalogue,
        gate=Gate(tokens, settings.token),
        tokens=tokens,
        enrolments=Enrolments(database, now=now),
        enrolment_attempts=AttemptLimit(),
        logs=LogStore(database, keep_lines=settings.keep_log_lines, keep_digests=settings.keep_log_digests, now=now),
        models=ModelCache(runtime or make_runtime(threads=settings.inference_threads), limit=settings.max_models),
        queue=BatchQueue(
            limit=settings.queue_limit,
            client_share=settings.client_share,
            max_batch=settings.max_batch,
            workers=settings.inference_workers,
        ),
        jobs=jobs,
        runner=_started_runner(settings, jobs, catalogue, now),
    )


def _started_runner(settings: Settings, jobs: JobStore, catalogue: Catalogue, now: Callable[[], datetime]) -> JobRunner:
    user = None if settings.job_user is None else JobUser.named(settings.job_user)
    if user is not None and settings.jobs_at_once > 1:
        raise UsageError("jobs of one user could read each other's folders", hint="leave out --jobs, or --job-user")
    if user is not None and settings.jobs_at_once:
        jobs_folder = settings.data_folder / "jobs"
        with storage_errors(jobs_folder):
            jobs_folder.mkdir(parents=True, exist_ok=True)
        user.open_way(settings.data_folder, jobs_folder, settings.database)
    runner = JobRunner(
        jobs,
        catalogue,
        folder=settings.folder,
        data_folder=settings.data_folder,
        command=settings.package_command,
        private_key=settings.signing_key,
        at_once=settings.jobs_at_once,
        keep=settings.keep_jobs,
        now=now,
        limits=JobLimits(settings.job_minutes, settings.job_memory_bytes, settings.job_disk_bytes),
        user=user,
    )
    if settings.jobs_at_once:
        runner.start()
    return runner
