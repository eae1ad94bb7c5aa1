"""``GET /health``: liveness and load, without authentication."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from device_sdk import __version__
from server.access.route import Route
from server.http.serving import Lane
from server.services import Services


def routes(services: Services) -> Blueprint:
    """The route of health."""
    blueprint = Blueprint("health", __name__)
    blueprint.add_url_rule("/health", "health", Route(_health, services, scope=None, lane=Lane.QUICK))
    return blueprint


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
