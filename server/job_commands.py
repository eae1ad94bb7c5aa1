"""``pathweave jobs``: the packaging jobs of a server, over HTTP."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from urllib.parse import quote

import click

from device_sdk.commands.command_line import emit, json_option
from device_sdk.commands.command_options import token_option
from device_sdk.errors import ProtocolError
from device_sdk.files.untrusted_json import decode_json

_MAX_REPLY_BYTES = 4_000_000
_url = click.argument("url")


@click.group()
def jobs() -> None:
    """Packaging jobs of a server: list them, and publish their bundles."""


@jobs.command("list")
@_url
@token_option
@json_option
def list_jobs(url: str, token: str | None, as_json: bool) -> None:
    """List the jobs that the token may see, the newest first."""
    listed = _ask("GET", url, "/v1/jobs", token).get("jobs", [])
    text = "\n".join(f"{job['id']}  {job['state']}  {_shown(job)}" for job in listed) or "no job"
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
    job = _ask("POST", url, f"/v1/jobs/{quote(job_id, safe='')}/publish", token, {"name": name})
    emit(job, as_json=as_json, text=f"serves {_shown(job)}")


def _shown(job: dict[str, Any]) -> str:
    return f"{job['bundle']} {job['version']}" if job["version"] else str(job["bundle"])


def _ask(method: str, url: str, path: str, token: str | None, value: object = None) -> dict[str, Any]:
    from device_sdk.transports import Deadlines, make_transport
    from device_sdk.transports.addresses import base
    from device_sdk.transports.replies import read_all, require_success

    body = None if value is None else json.dumps(value).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    deadlines = Deadlines(idle_s=60.0, total_s=300.0)  # publishing verifies the whole bundle first
    with (
        contextlib.closing(make_transport(url, token=token)) as transport,
        transport.send(
            method, base(url) + path, headers=headers, body=body, deadlines=deadlines, max_bytes=_MAX_REPLY_BYTES
        ) as reply,
    ):
        require_success(reply, what="the job")
        try:
            return decode_json(read_all(reply), dict[str, Any])
        except ValueError as error:
            raise ProtocolError(f"the server's response breaks the protocol: {error}") from error
