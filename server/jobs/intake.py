"""Accepting a job: checks of the server's ability and of the request, JSON or a form with weights, streamed to disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import IO, Any

from flask import Request
from werkzeug.datastructures import MultiDict
from werkzeug.formparser import FormDataParser

from device_sdk.files.atomic import storage_errors
from server.access.route import FORM
from server.errors import (
    ConflictError,
    EncodingError,
    MalformedError,
    NotInstalledError,
    TooLargeError,
    UnprocessableError,
)
from server.http.request_body import read_body
from server.jobs.job_request import MAX_BYTES, JobRequest, check_request, read_request
from server.jobs.runner import JobRunner
from server.jobs.store import Job, JobStore
from server.jobs.worker import PACKAGER_HINT, is_installed, missing_modules
from server.jobs.workplace import Workplace
from server.settings import Settings
from server.state.bundle_store import BundleStore

_JOB, _WEIGHTS = "job", "weights"
_MAX_PARTS = 4
_MAX_HEADER_BYTES = 8_000_000  # of weights; thousands of tensors need a tenth of it
_FORM_BYTES = 4 * MAX_BYTES  # besides the weights, in memory; the parser reads chunks of MAX_BYTES


def take_job(
    request: Request,
    *,
    client: str,
    may_hurry: bool,
    settings: Settings,
    store: JobStore,
    runner: JobRunner,
    bundles: BundleStore,
) -> Job:
    """Queue the job of a request. ``may_hurry``: the client may have it run before others.

    Raises:
        RequestError: this server cannot run it, or the request is invalid.
        StorageError: it cannot be stored.
    """
    _require_able(settings, store, runner, bundles)
    workplace = runner.workplace(secrets.token_hex(8))
    try:
        with storage_errors(workplace.folder):
            workplace.folder.mkdir(mode=0o700, parents=True)
        asked, weights = _read_job(request, workplace, max_weights_bytes=settings.max_weights_bytes)
        check_request(asked, known_data=runner.data_names(), may_hurry=may_hurry)
        runner.share_weights(workplace, weights)
        queued = settings.max_queued_jobs
        job = store.add(workplace.folder.name, asked, client=client, weights_sha256=weights, max_queued=queued)
    except BaseException:
        runner.forget(workplace.folder.name)
        raise
    runner.wake()
    return job


def _require_able(settings: Settings, store: JobStore, runner: JobRunner, bundles: BundleStore) -> None:
    """Checks that do not need the body."""
    if not settings.takes_jobs:
        raise ConflictError("this server does not accept jobs", hint="it was started with --jobs 0")
    if settings.database is None and missing_modules():
        raise NotInstalledError("the packager is not installed on the server", hint=PACKAGER_HINT)
    if not bundles.takes_bundles:
        raise ConflictError(
            "this server serves a single bundle and cannot publish another", hint="serve its parent folder"
        )
    runner.require_ours()
    store.require_place(settings.max_queued_jobs)


def _read_job(request: Request, workplace: Workplace, *, max_weights_bytes: int) -> tuple[JobRequest, str | None]:
    """The job, and the sha256 of its weights, which are stored in ``workplace``; None without weights.

    Raises:
        RequestError: an invalid job, too large, or weights that are not a complete safetensors file.
        StorageError: the weights could not be stored.
    """
    if request.mimetype != FORM:
        return read_request(read_body(request, max_bytes=MAX_BYTES)), None
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise EncodingError("a form must not be compressed", hint="send it without Content-Encoding")
    request.max_content_length = max_weights_bytes + _FORM_BYTES  # Flask answers 413 beyond it
    with storage_errors(workplace.folder), contextlib.ExitStack() as opened:
        form, files = _parse(request, workplace.folder, opened)
        job = read_request(_job_text(form, files))
        if _WEIGHTS not in files:
            return job, None
        uploaded = Path(files[_WEIGHTS].stream.name)
    with storage_errors(workplace.weights):
        if uploaded.stat().st_size > max_weights_bytes:
            raise TooLargeError(f"the weights have more than {max_weights_bytes} bytes")
        check_safetensors(uploaded)
        os.replace(uploaded, workplace.weights)
        with workplace.weights.open("rb") as file:
            return job, hashlib.file_digest(file, "sha256").hexdigest()


def check_safetensors(path: Path) -> None:
    """Check that the file is complete safetensors with at least one tensor (UnprocessableError otherwise)."""
    if not is_installed("safetensors"):
        raise NotInstalledError("weights cannot be checked on this server", hint="pip install 'pathweave[fleet]'")
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as start:
            if int.from_bytes(start.read(8), "little") > _MAX_HEADER_BYTES:
                raise ValueError(f"its header has more than {_MAX_HEADER_BYTES} bytes")
        with safe_open(path, framework="numpy") as file:
            if not file.keys():
                raise ValueError("it holds no tensor")
    except (SafetensorError, ValueError) as error:
        raise UnprocessableError(
            f"the weights are no safetensors file: {error}",
            hint="safetensors.torch.save_file(model.state_dict(), path)",
        ) from error


def _parse(
    request: Request, folder: Path, opened: contextlib.ExitStack
) -> tuple[MultiDict[str, str], MultiDict[str, Any]]:
    """The parts of the form: those without a file name as text, the others in files in ``folder``."""

    def new_file(*_: object, **__: object) -> IO[bytes]:
        return opened.enter_context((folder / f"part-{len(os.listdir(folder))}").open("w+b"))

    parser = FormDataParser(new_file, max_form_memory_size=_FORM_BYTES, max_form_parts=_MAX_PARTS, silent=False)
    try:
        _, form, files = parser.parse(request.stream, FORM, request.content_length, request.mimetype_params)
    except ValueError as error:
        raise MalformedError(f"the body is not a form: {error}") from error
    names = [name for part in (form, files) for name, _ in part.items(multi=True)]
    if not set(names) <= {_JOB, _WEIGHTS} or len(set(names)) != len(names) or _WEIGHTS in form:
        raise MalformedError("the form is invalid", hint="send one part job with JSON and one part weights with a file")
    return form, files


def _job_text(form: MultiDict[str, str], files: MultiDict[str, Any]) -> bytes:
    if _JOB in form:
        data = form[_JOB].encode()
    elif _JOB in files:
        file = files[_JOB].stream  # curl -F job=@job.json sends it as a file
        file.seek(0)
        data = bytes(file.read(MAX_BYTES + 1))
    else:
        raise MalformedError("the form has no part job")
    if len(data) > MAX_BYTES:
        raise TooLargeError(f"the job has more than {MAX_BYTES} bytes")
    return data
