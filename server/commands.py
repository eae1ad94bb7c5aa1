"""``pathweave serve``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from device_sdk.commands.command_line import emit, json_option
from device_sdk.errors import UsageError
from device_sdk.extras import require
from device_sdk.machine import usable_cores
from server.job_options import gigabytes, job_limits, times
from server.places import DATABASE_VARIABLE, bundles_option, database_option, place_of_bundles
from server.settings import MIB, Settings, default_data_folder
from server.stopping import stopped_by_signals

_folder = click.Path(file_okay=False, path_type=Path)
_file = click.Path(dir_okay=False, path_type=Path)
_count = partial(click.option, type=click.IntRange(min=1), show_default=True)


# Options with the names of settings are passed on as they are.
@click.command()
@click.argument("folder", type=_folder, required=False)
@bundles_option
@database_option
@click.option("--signed-urls", is_flag=True, help="Let clients that can fetch blobs from the object store itself.")
@gigabytes("--cache-gb", "cache_bytes", default=20.0, help="Disk space for blobs of an object store.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 selects a free port.")
@click.option("--data", type=_folder, help="Folder for tokens, logs and jobs [default: .pathweave-server in FOLDER].")
@click.option("--token", envvar="PATHWEAVE_TOKEN", help="Require this token [$PATHWEAVE_TOKEN].")
@click.option("--allow-anyone", is_flag=True, help="Listen beyond this machine without requiring a token.")
@click.option(
    *("--allow-host", "allowed_hosts"),
    multiple=True,
    callback=lambda context, option, names: tuple(name.lower() for name in names),
    help="A name of this server, if no token is required. Repeatable.",
)
@_count("--threads", "inference_threads", default=usable_cores, show_default="its cores", help="Threads per inference.")
@_count("--queue", "queue_limit", default=32, help="Maximum concurrent infer requests.")
@_count("--client-share", help="Of them per client [default: all].")
@_count("--max-batch", default=64, help="Samples that run together.")
@_count("--max-body-mb", "max_body_bytes", default=64, callback=times(MIB), help="Largest request body, MiB.")
@_count("--jobs", "jobs_at_once", type=click.IntRange(min=0), default=1, help="Packaging jobs at once.")
@_count("--job-queue", "max_queued_jobs", default=16, help="Maximum waiting packaging jobs.")
@_count("--max-weights-mb", "max_weights_bytes", default=256, callback=times(MIB), help="Weights for a job, MiB.")
@job_limits
@click.option(
    "--key", "signing_key", type=_file, help="Private key for signing the bundles of jobs (see pathweave sign key new)."
)
@click.option(
    "--drain-s", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Time to finish requests."
)
@click.option("--log-json", is_flag=True, help="Log JSON lines, also one for each request, with its id.")
@click.option("--check", is_flag=True, help="Say whether database and bundles can be used, and end.")
@json_option
@click.pass_context
def serve(
    context: click.Context,
    folder: Path | None,
    bundles: str | None,
    database: str | None,
    host: str,
    port: int,
    data: Path | None,
    allow_anyone: bool,
    drain_s: float,
    log_json: bool,
    check: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Serve the bundles in FOLDER to devices and clients of the Open Inference Protocol, with a status page.

    Also packages models on demand (POST /v1/jobs) if the extra packager is installed. Any number of servers may share a
    PostgreSQL and an object store (--database, --bundles); then pathweave worker runs the jobs, on any machine.
    """
    place = _place_of_bundles(folder, bundles)
    _require_usable(place, settings["signing_key"])
    if database is not None and context.get_parameter_source("jobs_at_once") is ParameterSource.DEFAULT:
        settings["jobs_at_once"] = 0
    chosen = Settings(place, _data_folder(place, data), database=database, **settings)
    if check:
        _check(chosen, as_json=as_json)
        return
    if log_json:
        from server.http.request_log import log_as_json

        log_as_json()
    _serve(chosen, host=host, port=port, allow_anyone=allow_anyone, drain_s=drain_s, as_json=as_json)


def _place_of_bundles(folder: Path | None, bundles: str | None) -> Path | str:
    if (folder is None) == (bundles is None):
        raise UsageError("name the bundles to serve, once", hint="pathweave serve FOLDER, or --bundles URL")
    if bundles is None:
        assert folder is not None
        return folder
    return place_of_bundles(bundles)


def _data_folder(place: Path | str, data: Path | None) -> Path:
    if data is not None:
        return data
    if isinstance(place, str):
        raise UsageError(
            "--bundles with a URL needs a folder for this server", hint="--data FOLDER: it keeps blobs there"
        )
    return default_data_folder(place)


def _check(settings: Settings, *, as_json: bool) -> None:
    from server.state_check import check_state, tell

    if not tell(list(check_state(settings)), as_json=as_json):
        raise click.exceptions.Exit(1)


def _require_usable(place: Path | str, key: Path | None) -> None:
    for module in ("flask", "waitress", "sqlalchemy", "alembic", "prometheus_client"):
        require(module, extra="server")
    from device_sdk.signing import signatures

    if isinstance(place, Path) and not place.is_dir():
        raise UsageError(f"there is no folder {place}", hint="name the folder that holds your bundles")
    if key is not None:
        signatures.sign(b"", private_key=key)  # an unusable key fails now, not after a job


def _serve(settings: Settings, *, host: str, port: int, allow_anyone: bool, drain_s: float, as_json: bool) -> None:
    """1. listen; 2. refuse a public address without a token; 3. print the URL; 4. serve until a signal."""
    from server.app import create_app
    from server.http.serving import SPARE_THREADS, HttpServer, listen, only_loopback, url_of
    from server.routes.bundles import summary

    with listen(host, port) as listener:
        app = create_app(settings)
        services = app.extensions["pathweave"]
        if not (allow_anyone or services.gate.closed or only_loopback(listener)):
            raise UsageError(
                f"{host} is reachable from other machines, and no token is required",
                hint=f"pathweave admin token new NAME {_where(settings)}, or --allow-anyone",
            )
        server = HttpServer(
            app,
            listener,
            threads=settings.queue_limit + SPARE_THREADS,
            max_body_bytes=settings.largest_body_bytes,
            drain_s=drain_s,
        )
        url, served = url_of(listener), services.bundles.listing().served
        names = ", ".join(f"{bundle.name} {bundle.version}" for bundle in served) or "no bundle yet"
        with stopped_by_signals(server.stop):
            emit(
                {"url": url, "bundles": [summary(entry) for entry in served]},
                as_json=as_json,
                text=f"{url} serves {names}",
            )
            server.run()
        services.close()


def _where(settings: Settings) -> str:
    if settings.database is None:
        return f"--data {settings.data_folder}"
    return f"with {DATABASE_VARIABLE} set"
