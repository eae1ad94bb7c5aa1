"""``/v1/jobs``: packaging jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from flask import Blueprint, Response, jsonify, request

from server.authentication import client_name
from server.errors import NotFoundError
from server.jobs.intake import take_job
from server.jobs.store import Job, State
from server.jobs.worker import without_paths
from server.services import Services

_LOG_BYTES = 65_536


def job_routes(services: Services) -> Blueprint:
    """The routes of jobs."""
    routes = Blueprint("jobs", __name__, url_prefix="/v1/jobs")
    routes.add_url_rule("", "list", partial(_list, services))
    routes.add_url_rule("", "add", partial(_add, services), methods=["POST"])
    routes.add_url_rule("/<job_id>", "describe", partial(_describe, services))
    routes.add_url_rule("/<job_id>", "cancel", partial(_cancel, services), methods=["DELETE"])
    routes.add_url_rule("/<job_id>/log", "log", partial(_log, services))
    return routes


def _list(services: Services) -> Response:
    listed = [_described(services, job) for job in services.jobs.latest(services.settings.listed_jobs)]
    return jsonify({"jobs": listed, "data": sorted(services.runner.references())})


def _add(services: Services) -> Response:
    job = take_job(
        request, client=client_name(), settings=services.settings, store=services.jobs, runner=services.runner
    )
    reply = jsonify(_described(services, job))
    reply.status_code = 202
    reply.headers["Location"] = f"/v1/jobs/{job.id}"
    return reply


def _describe(services: Services, job_id: str) -> Response:
    return jsonify(_described(services, services.jobs.find(job_id)))


def _cancel(services: Services, job_id: str) -> Response:
    return jsonify(_described(services, services.runner.cancel(job_id)))


def _log(services: Services, job_id: str) -> Response:
    job = services.jobs.find(job_id)
    if job.state is State.CANCELLED:
        raise NotFoundError("the log was deleted when the job was cancelled")
    text = services.runner.workplace(job.id).read_log(max_bytes=_LOG_BYTES)
    text = without_paths(text, services.runner.names_of_paths(job.id))
    return Response(text, mimetype="text/plain", headers={"Cache-Control": "no-store"})


def _described(services: Services, job: Job) -> dict[str, Any]:
    progress = services.runner.progress_of(job)
    return {
        "id": job.id,
        "client": job.client,
        **msgspec.to_builtins(job.request),
        "weights_sha256": job.weights_sha256,
        "state": job.state,
        "progress": None if progress is None else msgspec.to_builtins(progress),
        "version": job.version,
        "digest": job.digest,
        "error": job.error,
        "hint": job.hint,
        "created": job.created,
        "started": job.started,
        "finished": job.finished,
    }
