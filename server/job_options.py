"""Options of commands that run packaging jobs: what a job may take, and who runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def times(unit: float) -> Callable[[click.Context, click.Parameter, float | None], int | None]:
    """A callback for an option in a unit of so many bytes."""
    return lambda context, option, value: None if value is None else round(value * unit)


gigabytes = partial(click.option, type=float, show_default=True, callback=times(1e9))

_OPTIONS = (
    click.option("--job-minutes", type=float, default=720.0, show_default=True, help="Longest packaging job."),
    gigabytes("--job-memory-gb", "job_memory_bytes", help="Memory of a packaging job [default: no limit]."),
    gigabytes("--job-disk-gb", "job_disk_bytes", default=20.0, help="Disk space of a packaging job."),
    click.option("--job-user", help="System user for packaging jobs; needs root [default: the server's own]."),
)


def job_limits(command: _Command) -> _Command:
    """The options with the names of settings."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
