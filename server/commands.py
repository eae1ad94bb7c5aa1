"""``pathweave serve``. ``pathweave token`` and ``pathweave jobs`` are in modules of their own."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, json_option
from device_sdk.errors import UsageError
from device_sdk.extras import require
from device_sdk.machine import usable_cores
from server.token_commands import token

if TYPE_CHECKING:
    from server.serving import HttpServer
    from server.settings import Settings

__all__ = ["serve", "token"]

_folder = click.Path(file_okay=False, path_type=Path)
_file = click.Path(dir_okay=False, path_type=Path)
_at_least_one = click.IntRange(min=1)


@click.command()
@click.argument("folder", type=_folder)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 selects a free port.")
@click.option("--data", type=_folder, help="Folder for tokens, logs and jobs [default: .pathweave-server in FOLDER].")
@click.option("--token", envvar="PATHWEAVE_TOKEN", help="Require this token [$PATHWEAVE_TOKEN].")
@click.option("--allow-anyone", is_flag=True, help="Listen beyond this machine without requiring a token.")
@click.option("--allow-host", multiple=True, help="A name of this server, if no token is required. Repeatable.")
@click.option("--threads", type=_at_least_one, help="Threads per inference [default: one per core that it may use].")
@click.option("--queue", type=_at_least_one, default=32, show_default=True, help="Maximum concurrent infer requests.")
@click.option("--client-share", type=_at_least_one, help="Of them per client [default: all].")
@click.option("--max-batch", type=_at_least_one, default=64, show_default=True, help="Samples that run together.")
@click.option("--max-body-mb", type=_at_least_one, default=64, show_default=True, help="Largest request body, MiB.")
@click.option("--jobs", type=click.IntRange(min=0), default=1, show_default=True, help="Packaging jobs at once.")
@click.option("--job-queue", type=_at_least_one, default=16, show_default=True, help="Maximum waiting packaging jobs.")
@click.option("--max-weights-mb", type=_at_least_one, default=256, show_default=True, help="Weights for a job, MiB.")
@click.option("--job-minutes", type=float, default=720.0, show_default=True, help="Longest packaging job.")
@click.option("--job-memory-gb", type=float, help="Memory of a packaging job [default: no limit].")
@click.option("--job-disk-gb", type=float, default=20.0, show_default=True, help="Disk space of a packaging job.")
@click.option("--job-user", help="System user for packaging jobs; needs root [default: the server's own].")
@click.option("--key", type=_file, help="Private key for signing the bundles of jobs (see pathweave sign key new).")
@click.option(
    "--drain-s", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Time to finish requests."
)
@json_option
def serve(
    folder: Path,
    host: str,
    port: int,
    data: Path | None,
    token: str | None,
    allow_anyone: bool,
    allow_host: tuple[str, ...],
    threads: int | None,
    queue: int,
    client_share: int | None,
    max_batch: int,
    max_body_mb: int,
    jobs: int,
    job_queue: int,
    max_weights_mb: int,
    job_minutes: float,
    job_memory_gb: float | None,
    job_disk_gb: float,
    job_user: str | None,
    key: Path | None,
    drain_s: float,
    as_json: bool,
) -> None:
    """Serve the bundles in FOLDER to devices and clients of the Open Inference Protocol, with a status page.

    Also packages models on demand (POST /v1/jobs) if the extra packager is installed.
    """
    _require_usable(folder, key)
    from server.settings import MIB, Settings, default_data_folder

    settings = Settings(
        folder=folder,
        data_folder=data or default_data_folder(folder),
        token=token,
        allowed_hosts=tuple(name.lower() for name in allow_host),
        queue_limit=queue,
        client_share=client_share,
        max_batch=max_batch,
        inference_threads=threads or usable_cores(),
        max_body_bytes=max_body_mb * MIB,
        jobs_at_once=jobs,
        max_queued_jobs=job_queue,
        max_weights_bytes=max_weights_mb * MIB,
        job_minutes=job_minutes,
        job_memory_bytes=None if job_memory_gb is None else round(job_memory_gb * 1e9),
        job_disk_bytes=round(job_disk_gb * 1e9),
        job_user=job_user,
        signing_key=key,
    )
    _serve(settings, host=host, port=port, allow_anyone=allow_anyone, drain_s=drain_s, as_json=as_json)


def _require_usable(folder: Path, key: Path | None) -> None:
    for module in ("flask", "waitress"):
        require(module, extra="server")
    from device_sdk.signing import signatures

    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="name the folder that holds your bundles")
    if key is not None:
        signatures.sign(b"", private_key=key)  # an unusable key fails now, not after a job


def _serve(settings: Settings, *, host: str, port: int, allow_anyone: bool, drain_s: float, as_json: bool) -> None:
    """1. listen; 2. refuse a public address without a token; 3. print the URL; 4. serve until a signal."""
    from server.app import create_app
    from server.routes.bundles import summary
    from server.serving import SPARE_THREADS, HttpServer, listen, only_loopback, url_of

    with listen(host, port) as listener:
        app = create_app(settings)
        services = app.extensions["pathweave"]
        if not (allow_anyone or services.gate.closed or only_loopback(listener)):
            raise UsageError(
                f"{host} is reachable from other machines, and no token is required",
                hint=f"pathweave token new NAME --data {settings.data_folder}, or --allow-anyone",
            )
        server = HttpServer(
            app,
            listener,
            threads=settings.queue_limit + SPARE_THREADS,
            max_body_bytes=settings.largest_body_bytes,
            drain_s=drain_s,
        )
        url, served = url_of(listener), services.catalogue.listing().served
        names = ", ".join(f"{bundle.name} {bundle.version}" for bundle in served) or "no bundle yet"
        with _stopped_by_signals(server):
            emit(
                {"url": url, "bundles": [summary(entry) for entry in served]},
                as_json=as_json,
                text=f"{url} serves {names}",
            )
            server.run()
        services.close()


@contextlib.contextmanager
def _stopped_by_signals(server: HttpServer) -> Iterator[None]:
    """SIGTERM and SIGINT stop ``server``; a second signal ends the process at once."""
    before: dict[signal.Signals, Any] = {}

    def stop(*_: object) -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
