"""``pathweave admin``: tokens of a server, in its data folder; enrolment and packaging jobs, over HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.commands.command_line import emit, json_option
from device_sdk.commands.command_options import token_option
from device_sdk.errors import UsageError
from server.access.enrolment import Enrolments
from server.access.scopes import SCOPES, Scope
from server.access.tokens import TokenStore
from server.asking import ask_server
from server.places import DATABASE_VARIABLE, database_option, place_of_bundles
from server.rollouts_command import rollouts
from server.settings import database_path
from server.state.bundle_store import BundleStore, open_bundles
from server.state.database import Database

_CACHE_BYTES = 1_000_000_000

_positive = click.FloatRange(min=0, min_open=True)
_folder = click.Path(file_okay=False, path_type=Path)
_data_option = click.option("--data", type=_folder, help="The server's data folder (see pathweave serve).")
_url = click.argument("url")
_days = click.option(
    *("--expires-days", "--days", "days"),
    type=_positive,
    default=90.0,
    show_default=True,
    help="How long the token is valid.",
)


def _data(command: Callable[..., None]) -> Callable[..., None]:
    """Options that name the server's database; the command gets it opened, as ``database``."""

    @functools.wraps(command)
    def run(*, data: Path | None, database: str | None, **values: Any) -> None:
        if data is None and database is None:
            raise UsageError("which server?", hint=f"--data FOLDER, --database URL or ${DATABASE_VARIABLE}")
        opened = Database(database_path(data) if data is not None else str(database))
        try:
            command(database=opened, **values)
        finally:
            opened.close()

    return _data_option(database_option(run))


@click.group()
def admin() -> None:
    """Operate a server: access tokens and enrolment, packaging jobs."""


@admin.group()
def token() -> None:
    """Access tokens of a server. Once one exists, every request needs a token."""


@token.command("new")
@click.argument("name")
@click.option("--scope", type=click.Choice(SCOPES), default="device", show_default=True, help="What it permits.")
@click.option("--device", help="The only device whose log it may send [default: the first one whose log it sends].")
@_days
@_data
@json_option
def new_token(name: str, scope: str, device: str | None, days: float, database: Database, as_json: bool) -> None:
    """Make a token and print it; it cannot be shown again."""
    made = TokenStore(database).new(name, days=days, scope=Scope.named(scope), device=device)
    emit({"name": name, "token": made, "scope": scope, "device": device, "days": days}, as_json=as_json, text=made)


@token.command("list")
@_data
@json_option
def list_tokens(database: Database, as_json: bool) -> None:
    """List tokens by name, without the tokens themselves."""
    tokens = TokenStore(database).all()
    lines = [
        f"{token_.name}  {token_.scope}  {token_.device or '-'}  {token_.state}  until {token_.expires}"
        for token_ in tokens
    ]
    text = "\n".join(lines) or "no token: the server is open to all clients"
    emit({"tokens": [dataclasses.asdict(token_) for token_ in tokens]}, as_json=as_json, text=text)


@token.command("revoke")
@click.argument("name")
@_data
@json_option
def revoke_token(name: str, database: Database, as_json: bool) -> None:
    """Revoke a token; takes effect at once on a running server."""
    TokenStore(database).revoke(name)
    emit({"name": name, "state": "revoked"}, as_json=as_json, text=f"{name} is revoked")


@token.command("rotate")
@click.argument("name")
@_days
@_data
@json_option
def rotate_token(name: str, days: float, database: Database, as_json: bool) -> None:
    """Replace a token by a new one with its scope and device; the old one ends at once."""
    made = TokenStore(database).rotate(name, days=days)
    emit({"name": name, "token": made, "days": days}, as_json=as_json, text=made)


@token.command("restrict")
@click.argument("name")
@click.option("--scope", type=click.Choice(SCOPES), default="device", show_default=True, help="Its new, lower scope.")
@click.option("--device", help="The only device whose log it may send.")
@_data
@json_option
def restrict_token(name: str, scope: str, device: str | None, database: Database, as_json: bool) -> None:
    """Lower the scope of a token or bind it to a device; the token itself stays the same."""
    TokenStore(database).restrict(name, scope=Scope.named(scope), device=device)
    text = f"{name} has the scope {scope}" + (f" and is bound to {device}" if device else "")
    emit({"name": name, "scope": scope, "device": device}, as_json=as_json, text=text)


@token.command("enrol-code")
@click.option("--device", help="The device that it enrols [default: any new one].")
@click.option("--expires-minutes", type=_positive, default=15.0, show_default=True, help="How long the code is valid.")
@_days
@_data
@json_option
def new_enrolment_code(
    device: str | None, expires_minutes: float, days: float, database: Database, as_json: bool
) -> None:
    """Make a one-time code that a device exchanges for a token bound to it, and print it."""
    code = Enrolments(database).new_code(device=device, minutes=expires_minutes, days=days)
    told = {"code": code, "device": device, "expires_minutes": expires_minutes, "expires_days": days}
    emit(told, as_json=as_json, text=code)


class Enrolled(msgspec.Struct, frozen=True):
    """A server's reply to an enrolment."""

    token: str
    device: str
    expires: str


@token.command("enrol")
@_url
@click.argument("code")
@click.option("--device", help="The name of this device [default: the one that its logs are sent under].")
@json_option
def enrol(url: str, code: str, device: str | None, as_json: bool) -> None:
    """On a device: exchange a code for a token and print it; it cannot be shown again."""
    from device_sdk.session.device_state import default_state_folder, device_id

    asked = {"code": code, "device": device or device_id(default_state_folder())}
    made = ask_server("POST", url, "/v1/enrolments", Enrolled, asked, what="enrolment")
    emit(msgspec.to_builtins(made), as_json=as_json, text=made.token)


@admin.group()
def bundles() -> None:
    """Bundles in an object store that servers share."""


_store = click.option("--bundles", "location", required=True, help="The servers' object store, or a served folder.")


@contextlib.contextmanager
def _opened(location: str) -> Iterator[BundleStore]:
    with tempfile.TemporaryDirectory() as cache:
        store = open_bundles(place_of_bundles(location), cache=Path(cache), cache_bytes=_CACHE_BYTES)
        try:
            yield store
        finally:
            store.close()


@bundles.command("list")
@_store
@json_option
def list_bundles(location: str, as_json: bool) -> None:
    """List what is served, all versions."""
    with _opened(location) as store:
        listing = store.listing()
    served = [one for versions in listing.bundles.values() for one in versions]
    rows = [{"name": one.name, "version": one.version, "digest": one.bundle.digest} for one in served]
    lines = [f"{one.name}  {one.version}  {one.size_bytes:,} bytes" for one in served]
    lines += [f"{one.folder}  broken: {one.reason}" for one in listing.broken]
    broken = [dataclasses.asdict(one) for one in listing.broken]
    emit({"bundles": rows, "broken": broken}, as_json=as_json, text="\n".join(lines) or "no bundle")


@bundles.command("publish")
@click.argument("folder", type=_folder)
@_store
@json_option
def publish_bundle(folder: Path, location: str, as_json: bool) -> None:
    """Publish the bundle in FOLDER, under its name and version, as it was signed. Again: renews its release."""
    manifest = Bundle.open(folder).manifest
    with _opened(location) as store, tempfile.TemporaryDirectory() as copies:
        out = shutil.copytree(folder, Path(copies) / "bundle")  # a store may move it
        store.publish(out, name=manifest.name, version=manifest.version)
    told = {"name": manifest.name, "version": manifest.version}
    emit(told, as_json=as_json, text=f"serves {manifest.name} {manifest.version}")


@bundles.command("remove")
@click.argument("name")
@click.argument("version", type=click.IntRange(min=1))
@_store
@json_option
def remove_bundle(name: str, version: int, location: str, as_json: bool) -> None:
    """Stop serving a version. Devices that have it keep it."""
    with _opened(location) as store:
        store.remove(name, version)
    emit({"name": name, "version": version}, as_json=as_json, text=f"{name} {version} is removed")


@admin.group()
def jobs() -> None:
    """Packaging jobs of a server: list them, and publish their bundles."""


@jobs.command("list")
@_url
@token_option
@json_option
def list_jobs(url: str, token: str | None, as_json: bool) -> None:
    """List the jobs that the token may see, the newest first."""
    listed = ask_server("GET", url, "/v1/jobs", dict[str, Any], token=token, what="the jobs").get("jobs", [])
    text = "\n".join(f"{job['id']}  {job['state']}  {_shown(job)}{_waits(job)}" for job in listed) or "no job"
    emit({"jobs": listed}, as_json=as_json, text=text)


@jobs.command("publish")
@_url
@click.argument("job_id")
@click.option("--name", help="The name under which the bundle is served [default: the name in the job].")
@token_option
@json_option
def publish(url: str, job_id: str, name: str | None, token: str | None, as_json: bool) -> None:
    """Publish the bundle of a job as the next version of a served name, signed with the server's key.

    Needs a token with the scope operator.
    """
    path = f"/v1/jobs/{quote(job_id, safe='')}/publish"
    job = ask_server("POST", url, path, dict[str, Any], {"name": name}, token=token, what="the job")
    emit(job, as_json=as_json, text=f"serves {_shown(job)}")


def _waits(job: dict[str, Any]) -> str:
    return f"  {job['waits']}" if job.get("waits") else ""  # servers of before do not say


def _shown(job: dict[str, Any]) -> str:
    return f"{job['bundle']} {job['version']}" if job["version"] else str(job["bundle"])


admin.add_command(rollouts)
