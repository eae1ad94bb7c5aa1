"""``/v1/bundles/NAME/assignment``: a device's version; ``/v1/rollouts``: rollouts, for operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from flask import Blueprint, Response, jsonify, request

from device_sdk.delivery.assignment import ASSIGNMENT, DEVICE_HEADER
from server.access.authentication import client
from server.access.route import JSON, Route
from server.access.scopes import Scope
from server.errors import NotFoundError
from server.http.request_body import read_json
from server.http.serving import Lane
from server.rollouts.plan import Plan
from server.routes.sender import sent_tags
from server.services import Services
from server.state.log_store import check_device

_MAX_BYTES = 2_000_000  # a stage may name devices
_Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_NUMBER_DIGITS = 15


class NewRollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rollout to start. ``baseline``: the version that it replaces [default: what devices get now]."""

    bundle: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    version: _Version
    plan: Plan
    baseline: _Version | None = None


def routes(services: Services) -> Blueprint:
    """The routes of rollouts."""
    blueprint = Blueprint("rollouts", __name__, url_prefix="/v1")
    operator = partial(Route, scope=Scope.OPERATOR)
    assignment = Route(_assignment, services, scope=Scope.DEVICE, lane=Lane.DELIVERY)
    blueprint.add_url_rule(f"/bundles/<name>/{ASSIGNMENT}", "assignment", assignment)
    start = operator(_start, services, methods=("POST",), body_types=(JSON,), takes=NewRollout)
    blueprint.add_url_rule("/rollouts", "list", operator(_list, services))
    blueprint.add_url_rule("/rollouts", "start", start)
    blueprint.add_url_rule("/rollouts/<number>", "show", operator(_show, services))
    operators = services.rollouts.operators
    for name, change in (
        ("pause", operators.pause),
        ("resume", operators.resume),
        ("approve", operators.approve),
        ("reverse", operators.reverse),
    ):
        handler = operator(_change, services, change, methods=("POST",))
        blueprint.add_url_rule(f"/rollouts/<number>/{name}", name, handler)
    return blueprint


def _assignment(services: Services, name: str) -> Response:
    device, tags = check_device(request.headers.get(DEVICE_HEADER)), sent_tags()
    records = services.gate.is_device(client(), device)
    reply = jsonify(msgspec.to_builtins(services.rollouts.assign(name, device, tags, records=records)))
    reply.headers["Cache-Control"] = "no-store"
    return reply


def _list(services: Services) -> Response:
    return jsonify({"rollouts": services.rollouts.listing()})


def _start(services: Services) -> Response:
    asked = read_json(request, NewRollout, max_bytes=_MAX_BYTES, what="rollout")
    started = services.rollouts.operators.start(
        asked.bundle, asked.version, asked.plan, baseline=asked.baseline, by=client().name
    )
    report = services.rollouts.report(started.rollout.number)
    reply = jsonify({**report, "warnings": list(started.warnings)})
    reply.status_code = 201
    return reply


def _show(services: Services, number: str) -> Response:
    return _report(services, _checked(number))


def _change(services: Services, change: Callable[..., None], number: str) -> Response:
    change(_checked(number), by=client().name)
    return _report(services, _checked(number))


def _report(services: Services, number: int) -> Response:
    found: dict[str, Any] = services.rollouts.report(number)
    return jsonify(found)


def _checked(number: str) -> int:
    if not (number.isascii() and number.isdigit() and len(number) <= _NUMBER_DIGITS):
        raise NotFoundError("rollouts have numbers", hint="GET /v1/rollouts lists them")
    return int(number)
