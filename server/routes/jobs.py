"""``/v1/jobs``: packaging jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from flask import Blueprint, Response, jsonify, request

from device_sdk.files.atomic import decode_json
from server.access.authentication import client
from server.access.route import FORM, JSON, Route
from server.access.scopes import Scope
from server.errors import MalformedError, NotFoundError
from server.http.request_body import read_body
from server.jobs.intake import take_job
from server.jobs.job_request import JobRequest
from server.jobs.store import NO_JOB, NO_JOB_HINT, Job, State
from server.services import Services

_PUBLISH_BYTES = 4096


class Publication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``name``: under which the bundle is served; None: that of the job."""

    name: str | None = None


def routes(services: Services) -> Blueprint:
    """The routes of jobs."""
    blueprint = Blueprint("jobs", __name__, url_prefix="/v1/jobs")
    route = partial(Route, scope=Scope.PACKAGE)
    publish = Route(_publish, services, scope=Scope.OPERATOR, methods=("POST",), body_types=(JSON,), takes=Publication)
    add = route(_add, services, methods=("POST",), body_types=(JSON, FORM), takes=JobRequest, gives={"job_id": "/id"})
    blueprint.add_url_rule("", "list", route(_list, services))
    blueprint.add_url_rule("", "add", add)
    blueprint.add_url_rule("/<job_id>", "describe", route(_describe, services))
    blueprint.add_url_rule("/<job_id>", "cancel", route(_cancel, services, methods=("DELETE",)))
    blueprint.add_url_rule("/<job_id>/log", "log", route(_log, services))
    blueprint.add_url_rule("/<job_id>/publish", "publish", publish)
    return blueprint


def _list(services: Services) -> Response:
    owner = None if client().may(Scope.OPERATOR) else client().name
    settings = services.settings
    most = settings.keep_jobs + settings.max_queued_jobs + settings.jobs_at_once
    jobs = services.jobs.latest(most, client=owner)
    listed = [_described(services, job) for job in jobs]
    return jsonify({"jobs": listed, "data": sorted(services.runner.data_names())})


def _add(services: Services) -> Response:
    job = take_job(
        request,
        client=client().name,
        may_hurry=client().may(Scope.OPERATOR),
        settings=services.settings,
        store=services.jobs,
        runner=services.runner,
        bundles=services.bundles,
    )
    reply = jsonify(_described(services, job))
    reply.status_code = 202
    reply.headers["Location"] = f"/v1/jobs/{job.id}"
    return reply


def _describe(services: Services, job_id: str) -> Response:
    return jsonify(_described(services, _find(services, job_id)))


def _cancel(services: Services, job_id: str) -> Response:
    return jsonify(_described(services, services.runner.cancel(_find(services, job_id).id)))


def _publish(services: Services, job_id: str) -> Response:
    body = read_body(request, max_bytes=_PUBLISH_BYTES)
    try:
        asked = decode_json(body, Publication) if body else Publication()
    except ValueError as error:
        raise MalformedError(f"the publication is invalid: {error}", hint='send {} or {"name": "NAME"}') from error
    return jsonify(_described(services, services.runner.publish(job_id, name=asked.name, by=client().name)))


def _log(services: Services, job_id: str) -> Response:
    job = _find(services, job_id)
    if job.state is State.CANCELLED:
        raise NotFoundError("the log was deleted when the job was cancelled")
    return Response(services.runner.log_of(job), mimetype="text/plain", headers={"Cache-Control": "no-store"})


def _find(services: Services, job_id: str) -> Job:
    """A job of the client, or any job for an operator (NotFoundError otherwise)."""
    job = services.jobs.find(job_id)
    if job.client != client().name and not client().may(Scope.OPERATOR):
        raise NotFoundError(NO_JOB, hint=NO_JOB_HINT)
    return job


def _described(services: Services, job: Job) -> dict[str, Any]:
    progress = services.runner.progress_of(job)
    return {
        "id": job.id,
        "client": job.client,
        **msgspec.to_builtins(job.request),
        "weights_sha256": job.weights_sha256,
        "state": job.state,
        "progress": None if progress is None else msgspec.to_builtins(progress),
        "bundle": job.private_name if job.published is None else job.published_name,
        "version": None if job.published is None else job.published_version,
        "digest": job.digest,
        "published": job.published,
        "published_by": None if job.published is None else job.published_by,
        "error": job.error,
        "hint": job.hint,
        "waits": services.runner.why_waiting(job),
        "created": job.created,
        "started": job.started,
        "finished": job.finished,
    }
