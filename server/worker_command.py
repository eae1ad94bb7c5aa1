"""``pathweave worker``."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any

import click

from device_sdk.commands.command_line import emit, json_option
from device_sdk.errors import UsageError
from device_sdk.extras import require
from server.job_options import job_limits
from server.places import DATABASE_VARIABLE, database_option, place_of_bundles
from server.settings import Settings
from server.stopping import stopped_by_signals

_DEFAULT_DATA = Path(".pathweave-worker")
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@database_option
@click.option(
    "--bundles", metavar="URL", required=True, help="Where the servers have them: an object store, or a shared folder."
)
@click.option(
    "--data",
    "data_folder",
    type=_FOLDER,
    default=_DEFAULT_DATA,
    show_default=True,
    help="Folder for running jobs and data.toml.",
)
@click.option("--jobs", "jobs_at_once", type=click.IntRange(min=1), default=1, show_default=True, help="Jobs at once.")
@click.option("--tag", "job_tags", multiple=True, help="What jobs may ask of this machine, such as gpu. Repeatable.")
@job_limits
@click.option("--log-json", is_flag=True, help="Log JSON lines.")
@click.option("--check", is_flag=True, help="Say whether this machine can run jobs, and end.")
@json_option
def worker(
    database: str | None,
    bundles: str,
    job_tags: tuple[str, ...],
    log_json: bool,
    check: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Run packaging jobs of servers that share a PostgreSQL (--database), on any number of machines.

    A job whose machine is lost goes on elsewhere from its last saved work. SIGTERM gives running jobs back at once.
    """
    for module in ("flask", "sqlalchemy", "alembic"):
        require(module, extra="server")
    if database is None:
        raise UsageError("which servers' jobs?", hint=f"--database URL or ${DATABASE_VARIABLE}")
    chosen = Settings(_place(bundles), database=database, job_tags=_checked_tags(job_tags), **settings)
    if check:
        _check(chosen, as_json=as_json)
        return
    if log_json:
        from server.http.request_log import log_as_json

        log_as_json()
    run_worker(chosen, as_json=as_json)


def run_worker(settings: Settings, *, as_json: bool) -> None:
    """1. open database and store; 2. take jobs until a signal; 3. give back what runs.

    Raises:
        StorageError: the database or the data folder cannot be used. UsageError: invalid settings.
    """
    from server.jobs.job_worker import open_worker
    from server.state.database import Database

    assert settings.database is not None
    logging.getLogger("server.jobs").setLevel(logging.INFO)  # a line for each event
    database, stopped = Database(settings.database), threading.Event()
    running = open_worker(database, settings)
    try:
        with stopped_by_signals(stopped.set):
            running.start()
            name = running.claim.name or f"waits for another worker of {settings.data_folder}"
            told = {"worker": running.claim.name, "jobs": settings.jobs_at_once, "tags": list(settings.job_tags)}
            emit(told, as_json=as_json, text=f"{name} takes up to {settings.jobs_at_once} jobs of {database.name}")
            stopped.wait()
            running.close()
    finally:
        database.close()


def _place(bundles: str) -> Path | str:
    place = place_of_bundles(bundles)
    if isinstance(place, Path) and not place.is_dir():
        raise UsageError(f"there is no folder {place}", hint="name the folder that all machines share, or a URL")
    return place


def _checked_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    from server.jobs.job_request import TAG_PATTERN

    for tag in tags:
        if not re.match(TAG_PATTERN, tag):
            raise UsageError(f"{tag!r} cannot be a tag", hint="lower-case letters, digits, . _ and -, up to 32")
    return tags


def _check(settings: Settings, *, as_json: bool) -> None:
    from server.state_check import check_state, check_worker, tell

    findings = [*check_state(settings), *check_worker(settings)]
    if not tell(findings, as_json=as_json):
        raise click.exceptions.Exit(1)
