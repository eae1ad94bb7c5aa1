"""``pathweave migrate-state``: an embedded server's state to a database and an object store."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from device_sdk.commands.command_line import emit, json_option
from device_sdk.errors import UsageError
from device_sdk.extras import require
from server.places import bundles_option, database_option

_folder = click.Path(file_okay=False, path_type=Path)


@click.command("migrate-state")
@click.argument("folder", type=_folder)
@click.option("--data", type=_folder, help="The server's data folder [default: .pathweave-server in FOLDER].")
@database_option
@bundles_option
@click.option("--dry-run", is_flag=True, help="Say what would be moved; nothing is written.")
@json_option
def migrate_state(
    folder: Path, data: Path | None, database: str | None, bundles: str | None, dry_run: bool, as_json: bool
) -> None:
    """Move tokens, log lines and finished jobs of the server of FOLDER to --database, and its bundles to --bundles.

    Stop the server first. The folder is only read. Run it again after an interruption, and once more before devices are
    sent to the new servers: what is there already is compared, not written again.
    """
    if database is None and bundles is None:
        raise UsageError("where to?", hint="--database postgresql://…, --bundles s3://…, or both")
    for module in ("sqlalchemy", "alembic"):
        require(module, extra="server")
    from server.settings import database_path, default_data_folder

    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="name the folder that the server serves")
    told: dict[str, Any] = {"dry_run": dry_run}
    lines: list[str] = []
    if database is not None:
        _move_rows(database_path(data or default_data_folder(folder)), database, told, lines, dry_run=dry_run)
    if bundles is not None:
        _move_bundles(folder, bundles, told, lines, dry_run=dry_run)
    emit(told, as_json=as_json, text="\n".join(lines))


def _move_rows(path: Path, url: str, told: dict[str, Any], lines: list[str], *, dry_run: bool) -> None:
    from server.moving import TABLES, copied_database, count_devices, move_table, unfinished_jobs
    from server.state.database import Database

    with copied_database(path) as source, contextlib.closing(Database(url, upgraded=not dry_run)) as target:
        target.check()
        reports = [move_table(moved, source, None if dry_run else target) for moved in TABLES]
        if not dry_run:
            count_devices(source, target)
        left = unfinished_jobs(source)
    told |= {"database": target.name, "tables": [dataclasses.asdict(one) for one in reports], "unfinished_jobs": left}
    for one in reports:
        found = f"{one.table}: {one.rows:,} rows"
        differing = f", {one.differing:,} that differ there were left alone" if one.differing else ""
        lines.append(found if dry_run else f"{found}, {one.moved:,} moved now, all verified{differing}")
    if left:
        lines.append(f"{left} jobs wait or run and stay behind: finish or cancel them first")


def _move_bundles(folder: Path, url: str, told: dict[str, Any], lines: list[str], *, dry_run: bool) -> None:
    from server.moving import move_bundles
    from server.state.folder_bundles import FolderBundles

    broken = [dataclasses.asdict(one) for one in FolderBundles(folder).listing().broken]
    with _target(url, dry_run=dry_run) as target:
        reports = list(move_bundles(folder, target))
    told |= {"bundles": url, "versions": [dataclasses.asdict(one) for one in reports], "broken": broken}
    for one in reports:
        lines.append(f"{one.name} {one.version}" + ("" if dry_run else f": {one.size_bytes:,} bytes, verified"))
    lines += [f"{one['folder']} is broken and stays behind: {one['reason']}" for one in broken]


@contextlib.contextmanager
def _target(url: str, *, dry_run: bool) -> Iterator[Any]:
    from server.state.object_bundles import ObjectBundles
    from server.state.object_store import ObjectStore

    store = ObjectStore.at(url)
    if dry_run:
        store.size("latest/-")  # it answers
        yield None
        return
    store.probe()
    with tempfile.TemporaryDirectory() as cache:
        target = ObjectBundles(store, Path(cache), cache_bytes=0)
        try:
            yield target
        finally:
            target.close()
