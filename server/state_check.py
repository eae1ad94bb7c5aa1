"""``pathweave serve --check``: what the server would find, without changing anything but a probe object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from device_sdk.errors import PathweaveError
from server.settings import Settings, database_path
from server.state.bundle_store import open_bundles
from server.state.database import Database, parsed_url, shown
from server.state.schema import HEAD, require_not_newer


@dataclass(frozen=True)
class Finding:
    """One part of the state. ``name``: without passwords; ``text``: what was found, or the error with its hint."""

    part: str
    name: str
    ok: bool
    text: str


def check_state(settings: Settings) -> Iterator[Finding]:
    """A finding for the database, and one for the store of bundles."""
    location = settings.database or database_path(settings.data_folder)
    yield _checked("database", _shown(location), lambda: _database(location))
    yield _checked("bundles", str(settings.bundles), lambda: _bundles(settings))


def _checked(part: str, name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(part, name, True, check())
    except PathweaveError as error:
        return Finding(part, name, False, f"{error} ({error.hint})" if error.hint else str(error))


def _shown(location: Path | str) -> str:
    try:
        return str(location) if isinstance(location, Path) else shown(parsed_url(location))
    except PathweaveError:
        return "--database"


def _database(location: Path | str) -> str:
    if isinstance(location, Path) and not location.exists():
        return "will be created"
    database = Database(location, upgraded=False)
    try:
        with database.reading() as connection:
            revision = require_not_newer(connection, named=database.name)
    finally:
        database.close()
    if revision == HEAD:
        return f"answers, its schema is {HEAD}"
    return f"answers, its schema {revision or 'is empty and'} will be brought to {HEAD}"


def _bundles(settings: Settings) -> str:
    bundles = open_bundles(
        settings.bundles,
        cache=settings.cache_folder,
        cache_bytes=settings.cache_bytes,
        signed_urls=settings.signed_urls,
    )
    try:
        bundles.check()
        listing = bundles.listing()
    finally:
        bundles.close()
    how = "" if settings.folder is not None else ", with conditional writes"
    broken = f", {len(listing.broken)} of them broken" if listing.broken else ""
    return f"answers{how}; bundles: {len(listing.bundles) + len(listing.broken)}{broken}"
