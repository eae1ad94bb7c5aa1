"""The WSGI application."""

from __future__ import annotations

from flask import Flask

from server.access.admission import Admission
from server.access.authentication import ask_for_tokens
from server.access.recent import RecentDecisions
from server.access.route import find_routes
from server.http.memory_budget import MemoryBudget
from server.http.replies import answer_errors
from server.http.request_log import identify_requests
from server.http.serving import ADMIT_BODY, LANE_OF, Lane
from server.http.tracing import trace_requests
from server.page.failure import failure_page
from server.routes import bundles, health, inference, jobs, logs, page, placements, rollouts, split, tokens
from server.services import Services
from server.settings import Settings

ROUTES = (bundles, rollouts, inference, placements, split, logs, jobs, tokens, page, health)


def create_app(settings: Settings, *, services: Services | None = None) -> Flask:
    """The application that serves ``settings.bundles``; ``app.extensions["pathweave"]`` are its services.

    ``services``: made from the settings unless given.

    Raises:
        StorageError: the data folder cannot be used.
    """
    services = services or Services(settings)
    app = Flask(__name__, static_folder=None)
    app.extensions["pathweave"] = services
    find_route = find_routes(app)
    recent = RecentDecisions(services.gate)
    app.extensions[ADMIT_BODY] = services.metrics.counted(
        Admission(
            recent,
            find_route,
            memory=MemoryBudget(settings.memory_bytes),
            uploads=MemoryBudget(settings.upload_bytes),
        )
    )
    app.extensions[LANE_OF] = lambda method, path: (
        Lane.OTHER if (found := find_route(method, path)) is None else found.lane
    )
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.url_map.merge_slashes = False  # addresses with repeated slashes are not found
    app.url_map.strict_slashes = False
    services.metrics.observe(app)
    identify_requests(app)
    if services.tracing is not None:
        trace_requests(app, services.tracing)
    answer_errors(app, refused=services.metrics.refused, shown=failure_page)
    ask_for_tokens(app, services.gate, recent, allowed_hosts=settings.allowed_hosts)
    for kind in ROUTES:
        app.register_blueprint(kind.routes(services))
    return app
