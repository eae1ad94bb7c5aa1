"""What devices ask before they divide work with the server: its profile of a bundle, and how far away it is."""

from __future__ import annotations

from functools import partial

import msgspec
from flask import Blueprint, Response, jsonify, request

from server.inference.profiles import ServerProfiles
from server.request_body import read_body
from server.services import Services

MAX_PROBE_BYTES = 1_000_000


def split_routes(services: Services) -> Blueprint:
    """The addresses of profiles and probes."""
    profiles = ServerProfiles(services.models.runtime, services.settings.data_folder / "profiles")
    routes = Blueprint("split", __name__, url_prefix="/v1")
    routes.add_url_rule("/bundles/<name>/profile", "profile", partial(_profile, services, profiles))
    routes.add_url_rule("/probe", "probe", _probe, methods=["POST"])
    return routes


def _profile(services: Services, profiles: ServerProfiles, name: str) -> Response:
    """What every block of a bundle costs here; the first to ask waits until that is measured."""
    profile = profiles.of(services.catalogue.find(name).bundle)
    return Response(msgspec.json.encode(profile), mimetype="application/json")


def _probe() -> Response:
    """Counts what comes, so that a device can time how long it takes to come."""
    return jsonify({"bytes": len(read_body(request, max_bytes=MAX_PROBE_BYTES))})
