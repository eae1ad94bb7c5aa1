"""Options of commands that say where a server's state is."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from device_sdk.errors import UsageError

DATABASE_VARIABLE = "PATHWEAVE_DATABASE_URL"


def is_url(location: str) -> bool:
    """True if ``location`` names an object store instead of a folder."""
    return "://" in location


def place_of_bundles(location: str) -> Path | str:
    """A folder, or the URL of an object store."""
    return location if is_url(location) else Path(location)


def _without_password(context: click.Context, option: click.Parameter, url: str | None) -> str | None:
    """Refuse a password on the command line, which all users of the machine can read."""
    assert option.name is not None
    if url is None or context.get_parameter_source(option.name) is not ParameterSource.COMMANDLINE:
        return url
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None or "password=" in parts.query
    except ValueError:
        has_password = True
    if has_password:
        raise UsageError(
            "a password on the command line can be read by every user of this machine",
            hint=f"set {DATABASE_VARIABLE} to the URL, or keep the password in ~/.pgpass",
        )
    return url


database_option = click.option(
    "--database",
    envvar=DATABASE_VARIABLE,
    metavar="URL",
    callback=_without_password,
    help=f"PostgreSQL, for several servers: postgresql://USER@HOST/NAME [${DATABASE_VARIABLE}; default: a file].",
)
bundles_option = click.option(
    "--bundles",
    metavar="URL",
    help="Object store instead of FOLDER: s3://BUCKET/PREFIX, gs://… or az://ACCOUNT/CONTAINER/….",
)
