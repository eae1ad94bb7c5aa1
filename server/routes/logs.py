"""``POST /v1/logs``: adaptation logs of devices; ``GET /v1/devices``: the devices."""

from __future__ import annotations

import dataclasses

from flask import Blueprint, Response, jsonify, request

from server.access.authentication import client
from server.access.route import Route
from server.access.scopes import Scope
from server.http.request_body import read_body
from server.services import Services
from server.state.log_store import check_device, check_lines


def routes(services: Services) -> Blueprint:
    """The routes of logs and devices."""
    blueprint = Blueprint("logs", __name__, url_prefix="/v1")
    blueprint.add_url_rule("/logs", "add", Route(_add, services, scope=Scope.DEVICE, methods=("POST",)))
    blueprint.add_url_rule("/devices", "devices", Route(_devices, services, scope=Scope.OPERATOR))
    return blueprint


def _add(services: Services) -> Response:
    settings = services.settings
    device = check_device(request.headers.get("Pathweave-Device"))
    body = read_body(request, max_bytes=settings.max_log_body_bytes)
    lines = check_lines(body, max_line_bytes=settings.max_log_line_bytes)
    services.gate.require_device(client(), device)  # binds the token: only to a device whose log is taken
    stored = services.logs.add(device, lines)
    return jsonify(dataclasses.asdict(stored))


def _devices(services: Services) -> Response:
    return jsonify({"devices": [dataclasses.asdict(device) for device in services.fleet.senders()]})
