"""The WSGI application."""

from __future__ import annotations

from flask import Flask

from server.access.admission import Admission
from server.access.authentication import ask_for_tokens
from server.http.memory_budget import MemoryBudget
from server.http.replies import answer_errors
from server.http.serving import ADMIT_BODY
from server.routes.bundles import bundle_routes
from server.routes.health import health_routes
from server.routes.inference import inference_routes
from server.routes.jobs import job_routes
from server.routes.logs import log_routes
from server.routes.page import page_routes
from server.routes.placements import placement_routes
from server.routes.split import split_routes
from server.routes.tokens import token_routes
from server.services import Services, make_services
from server.settings import Settings

ROUTES = (
    bundle_routes,
    inference_routes,
    placement_routes,
    split_routes,
    log_routes,
    job_routes,
    token_routes,
    page_routes,
    health_routes,
)


def create_app(settings: Settings, *, services: Services | None = None) -> Flask:
    """The application that serves ``settings.folder``; ``app.extensions["pathweave"]`` are its services.

    ``services``: made from the settings unless given.

    Raises:
        StorageError: the data folder cannot be used.
    """
    services = services or make_services(settings)
    app = Flask(__name__, static_folder=None)
    app.extensions["pathweave"] = services
    app.extensions[ADMIT_BODY] = Admission(
        services.gate, memory=MemoryBudget(settings.memory_bytes), uploads=MemoryBudget(settings.upload_bytes)
    )
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.url_map.merge_slashes = False  # addresses with repeated slashes are not found
    app.url_map.strict_slashes = False
    answer_errors(app)
    ask_for_tokens(app, services.gate, allowed_hosts=settings.allowed_hosts)
    for routes in ROUTES:
        app.register_blueprint(routes(services))
    return app
