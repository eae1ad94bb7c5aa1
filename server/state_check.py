"""``pathweave serve --check`` and ``worker --check``: what they would find; nothing changes but a probe object."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_sdk.commands.command_line import emit
from device_sdk.errors import PathweaveError
from device_sdk.files.atomic import storage_errors
from server.errors import ConfigurationError, NotInstalledError
from server.jobs.data_sets import BUILT_IN
from server.jobs.job_folders import DATA_FILE, JobFolders
from server.jobs.worker import PACKAGER_HINT, missing_modules
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


def check_worker(settings: Settings) -> Iterator[Finding]:
    """Findings for what a machine needs to run jobs: the packager, data, its folder."""
    yield _checked("packager", "", _packager)
    yield _checked("data", str(settings.data_folder), lambda: _data(settings))


def tell(findings: Sequence[Finding], *, as_json: bool) -> bool:
    """Print findings; False if one of them is an error."""
    lines = [" ".join([f"{one.part}:", *([one.name] if one.ok and one.name else []), one.text]) for one in findings]
    ok = all(one.ok for one in findings)
    parts = {one.part: {"name": one.name, "ok": one.ok, "found": one.text} for one in findings}
    emit({"ok": ok, **parts}, as_json=as_json, text="\n".join(lines))
    return ok


def _packager() -> str:
    missing = missing_modules()
    if missing:
        raise NotInstalledError(f"{', '.join(missing)} not installed", hint=PACKAGER_HINT)
    return "installed"


def _data(settings: Settings) -> str:
    folders = JobFolders(settings)
    with storage_errors(folders.jobs):
        folders.jobs.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folders.jobs):
            pass
    references = folders.references()
    away = [name for name, path in references.items() if name not in BUILT_IN and not _is_there(path)]
    if away:
        raise ConfigurationError(f"data {', '.join(away)} cannot be read", hint=f"correct {DATA_FILE}, or mount it")
    return f"can be written; data: {', '.join(sorted(references))}"


def _is_there(reference: str) -> bool:
    return reference in BUILT_IN or Path(reference.partition("#")[0]).exists()


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
