"""Accepting a job: checks of the server's ability and of the request."""

from __future__ import annotations

import importlib.util
import secrets

from flask import Request

from device_sdk.bundles.bundle import MANIFEST
from device_sdk.files.atomic import storage_errors
from server.errors import ConflictError, NotInstalledError
from server.jobs.job_request import check_request
from server.jobs.runner import JobRunner
from server.jobs.store import Job, JobStore
from server.jobs.upload import read_job
from server.settings import Settings

_PACKAGERS_MODULES = ("torch", "onnx", "onnxscript", "safetensors")


def take_job(request: Request, *, client: str, settings: Settings, store: JobStore, runner: JobRunner) -> Job:
    """Queue the job of a request.

    Raises:
        RequestError: this server cannot run it, or the request is invalid.
        StorageError: it cannot be stored.
    """
    _require_able(settings, store, runner)
    workplace = runner.workplace(secrets.token_hex(8))
    try:
        with storage_errors(workplace.folder):
            workplace.folder.mkdir(mode=0o700)
        asked, weights = read_job(request, workplace, max_weights_bytes=settings.max_weights_bytes)
        check_request(asked, known_data=runner.references())
        queued = settings.max_queued_jobs
        job = store.add(workplace.folder.name, asked, client=client, weights_sha256=weights, max_queued=queued)
    except BaseException:
        workplace.remove()
        raise
    runner.wake()
    return job


def _require_able(settings: Settings, store: JobStore, runner: JobRunner) -> None:
    """Checks that do not need the body."""
    if not settings.jobs_at_once:
        raise ConflictError("this server does not accept jobs", hint="it was started with --jobs 0")
    if not all(map(_is_installed, _PACKAGERS_MODULES)):
        raise NotInstalledError("the packager is not installed on the server", hint="pip install 'pathweave[packager]'")
    if (settings.folder / MANIFEST).exists():
        raise ConflictError(
            "this server serves a single bundle and cannot publish another", hint="serve its parent folder"
        )
    runner.require_ours()
    store.require_place(settings.max_queued_jobs)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
