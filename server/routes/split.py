"""For devices that plan to split inference with the server: its profile of a bundle, and a bandwidth probe."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import msgspec
from flask import Blueprint, Response, jsonify, request

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.workspace import Workspace
from device_sdk.files.atomic import decode_json, write_atomically
from device_sdk.profiling.profile import Profile, profile
from device_sdk.profiling.timing import Patience
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import runs_on
from device_sdk.runtimes.port import Runtime
from server.access.route import Route
from server.access.scopes import Scope
from server.http.request_body import read_body
from server.routes.sender import bundle_for_sender
from server.services import Services

MAX_PROBE_BYTES = 1_000_000
# Few rounds: a device waits for the reply, and compares it with a network time that is no more precise.
_PATIENCE = Patience(rounds=10, precision=0.05, limit_s=2.0)


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
    found = profiles.of(bundle_for_sender(services, name).bundle)
    return Response(msgspec.json.encode(found), mimetype="application/json")


def _probe() -> Response:
    """Reads the body and returns its size, so a device can measure the upload time."""
    return jsonify({"bytes": len(read_body(request, max_bytes=MAX_PROBE_BYTES))})


class ServerProfiles:
    """Profiles by bundle, each a file in ``folder``. Thread-safe; measurements are serialised."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self._runtime = runtime
        self._folder = folder
        self._measuring = threading.Lock()  # concurrent measurements would disturb each other

    def of(self, bundle: Bundle) -> Profile:
        """The profile of ``bundle`` on this machine, with this runtime.

        Raises:
            BundleError, RuntimeFailedError: a block does not load or run.
            StorageError: it cannot be stored.
        """
        path = self._folder / f"{bundle.digest}.json"
        with self._measuring:
            stored = _read(path)
            if stored is not None and stored.valid_for(bundle, self._runtime):
                return stored
            runnable = bundle.runnable(runs_on())
            measured = profile(Workspace(runnable, self._runtime), progress=SilentProgress(), patience=_PATIENCE)
            write_atomically(path, msgspec.json.encode(measured) + b"\n")
            return measured


def _read(path: Path) -> Profile | None:
    try:
        return decode_json(path.read_bytes(), Profile)
    except (OSError, ValueError):
        return None
