"""``GET /health``: liveness and load; ``/ready``: readiness; both without a token, as ``/openapi.json``."""

from __future__ import annotations

from flask import Blueprint, Response, current_app, jsonify

from device_sdk import __version__
from server.access.route import Route
from server.access.scopes import Scope
from server.http.serving import Lane
from server.metrics import CONTENT_TYPE
from server.openapi import document
from server.services import Services

_RETRY_S = "5"


def routes(services: Services) -> Blueprint:
    """The routes of health."""
    blueprint = Blueprint("health", __name__)
    blueprint.add_url_rule("/health", "health", Route(_health, services, scope=None, lane=Lane.QUICK))
    blueprint.add_url_rule("/ready", "ready", Route(_ready, services, scope=None, lane=Lane.QUICK))
    blueprint.add_url_rule("/metrics", "metrics", Route(_metrics, services, scope=Scope.OPERATOR))
    blueprint.add_url_rule("/openapi.json", "openapi", Route(_openapi, scope=None, lane=Lane.QUICK))
    return blueprint


def _openapi() -> Response:
    return jsonify(document(current_app))


def _metrics(services: Services) -> Response:
    return Response(services.metrics.text(), content_type=CONTENT_TYPE)


def _ready(services: Services) -> Response:
    away = services.readiness.away()
    states = {part: "away" if part in away else "ok" for part in ("database", "bundles")}
    if not (away or services.queue.closed):
        return jsonify({"ready": True, **states})
    reason = " and ".join(away) + (" are away" if len(away) > 1 else " is away") if away else "the server is stopping"
    reply = jsonify({"error": reason, "ready": False, **states})
    reply.status_code = 503
    reply.headers["Retry-After"] = _RETRY_S
    return reply


def _health(services: Services) -> Response:
    listing = services.bundles.listing()
    return jsonify(
        {
            "status": "stopping" if services.queue.closed else "ok",
            "version": __version__,
            "bundles": len(listing.bundles),
            "broken_bundles": len(listing.broken),
            "queue_length": len(services.queue),
        }
    )
