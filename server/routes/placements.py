"""``POST /v1/placements``: which exits to keep."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, request

from device_sdk.files.untrusted_json import decode_json
from server.access.route import Route
from server.access.scopes import Scope
from server.errors import MalformedError
from server.http.request_body import read_body
from server.placements import PlacementRequest, decide
from server.services import Services

_MAX_BYTES = 250_000


def routes(services: Services) -> Blueprint:
    """The route of placements."""
    blueprint = Blueprint("placements", __name__, url_prefix="/v1/placements")
    blueprint.add_url_rule("", "decide", Route(_decide, services, scope=Scope.DEVICE, methods=("POST",)))
    return blueprint


def _decide(services: Services) -> Response:
    body = read_body(request, max_bytes=_MAX_BYTES)
    try:
        asked = decode_json(body, PlacementRequest)
    except ValueError as error:
        raise MalformedError(f"the body is not a placement request: {error}") from error
    served = services.catalogue.find(asked.bundle)
    placement = decide(asked, served.bundle.supernet, version=served.version)
    return jsonify(placement | {"digest": served.bundle.digest})
