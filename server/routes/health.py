"""``GET /health``: liveness and load, without authentication."""

from __future__ import annotations

from functools import partial

from flask import Blueprint, Response, jsonify

from device_sdk import __version__
from server.services import Services


def health_routes(services: Services) -> Blueprint:
    """The route of health."""
    routes = Blueprint("health", __name__)
    routes.add_url_rule("/health", "health", partial(_health, services))
    return routes


def _health(services: Services) -> Response:
    listing = services.catalogue.listing()
    return jsonify(
        {
            "status": "stopping" if services.queue.closed else "ok",
            "version": __version__,
            "bundles": len(listing.bundles),
            "broken_bundles": len(listing.broken),
            "queue_length": len(services.queue),
        }
    )
