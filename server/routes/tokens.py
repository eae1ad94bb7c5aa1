"""``POST /v1/enrolments``: a code for a token; ``/v1/enrolment-codes`` and ``/v1/tokens``: administration."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated

import msgspec
from flask import Blueprint, Response, jsonify, request

from device_sdk.errors import UsageError
from server.access.route import Route
from server.access.scopes import Scope
from server.errors import NotFoundError
from server.http.request_body import read_json
from server.services import Services

_MAX_BYTES = 4096
CODE_MINUTES, TOKEN_DAYS = 15.0, 90.0


class Enrolment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``device``: may be left out if the code is for one."""

    code: Annotated[str, msgspec.Meta(max_length=100)]
    device: str | None = None


class NewCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``device``: None for any new one; ``expires_days``: validity of the token."""

    device: str | None = None
    expires_minutes: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = CODE_MINUTES
    expires_days: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = TOKEN_DAYS


def routes(services: Services) -> Blueprint:
    """The routes of tokens and enrolment."""
    blueprint = Blueprint("tokens", __name__, url_prefix="/v1")
    route = partial(Route, scope=Scope.ADMIN)
    enrol = Route(  # the code in the body stands in for a token
        _enrol, services, scope=None, methods=("POST",), takes=Enrolment
    )
    new_code = route(_new_code, services, methods=("POST",), takes=NewCode)
    blueprint.add_url_rule("/enrolments", "enrol", enrol)
    blueprint.add_url_rule("/enrolment-codes", "new_code", new_code)
    blueprint.add_url_rule("/tokens", "list", route(_list, services))
    blueprint.add_url_rule("/tokens/<name>", "revoke", route(_revoke, services, methods=("DELETE",)))
    return blueprint


def _enrol(services: Services) -> Response:
    address, attempts = request.remote_addr or "unknown", services.enrolment_attempts
    attempts.take(address)
    asked = read_json(request, Enrolment, max_bytes=_MAX_BYTES)
    made = services.enrolments.exchange(asked.code, asked.device)
    attempts.forgive(address)
    return _created(token=made.token, device=made.device, scope="device", expires=made.expires)


def _new_code(services: Services) -> Response:
    asked = read_json(request, NewCode, max_bytes=_MAX_BYTES)
    minutes, days = asked.expires_minutes, asked.expires_days
    code = services.enrolments.new_code(device=asked.device, minutes=minutes, days=days)
    return _created(code=code, device=asked.device, expires_minutes=minutes, expires_days=days)


def _list(services: Services) -> Response:
    return jsonify({"tokens": [dataclasses.asdict(token) for token in services.tokens.all()]})


def _revoke(services: Services, name: str) -> Response:
    try:
        services.tokens.revoke(name)
    except UsageError as error:
        raise NotFoundError(str(error), hint="GET /v1/tokens lists them") from error
    return jsonify({"name": name, "state": "revoked"})


def _created(**values: object) -> Response:
    reply = jsonify(values)
    reply.status_code = 201
    reply.headers["Cache-Control"] = "no-store"
    return reply
