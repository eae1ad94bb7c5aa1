"""For devices that plan to split inference with the server: its profile of a bundle, and a bandwidth probe."""

from __future__ import annotations

from functools import partial

import msgspec
from flask import Blueprint, Response, jsonify, request

from server.access.route import Route
from server.access.scopes import Scope
from server.http.request_body import read_body
from server.inference.profiles import ServerProfiles
from server.services import Services

MAX_PROBE_BYTES = 1_000_000


def routes(services: Services) -> Blueprint:
    """The routes of profiles and probes."""
    profiles = ServerProfiles(services.models.runtime, services.settings.data_folder / "profiles")
    blueprint = Blueprint("split", __name__, url_prefix="/v1")
    route = partial(Route, scope=Scope.DEVICE)
    blueprint.add_url_rule("/bundles/<name>/profile", "profile", route(_profile, services, profiles))
    blueprint.add_url_rule("/probe", "probe", route(_probe, methods=("POST",)))
    return blueprint


def _profile(services: Services, profiles: ServerProfiles, name: str) -> Response:
    """The cost of every block of a bundle on this server. The first request waits for the measurement."""
    profile = profiles.of(services.catalogue.find(name).bundle)
    return Response(msgspec.json.encode(profile), mimetype="application/json")


def _probe() -> Response:
    """Reads the body and returns its size, so a device can measure the upload time."""
    return jsonify({"bytes": len(read_body(request, max_bytes=MAX_PROBE_BYTES))})
