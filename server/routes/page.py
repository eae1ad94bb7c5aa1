"""``GET /``: the status page, and its table of jobs, which its script polls."""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, render_template

from device_sdk import __version__
from server.access.route import Route
from server.access.scopes import Scope
from server.overview import DEVICES, JOBS, LATEST_EVENTS, Row, bundle_names, device_rows, event_rows, job_rows
from server.services import Services

_TEMPLATES = Path(__file__).parent / "templates"
_STYLE = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
_SCRIPT = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# Content security policy: only the page's own style and script, so names sent by devices cannot load or run anything.
# Other responses of this server have content types that browsers do not execute.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src 'sha256-{_STYLE_DIGEST}'",
        "script-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def routes(services: Services) -> Blueprint:
    """The routes of the page."""
    blueprint = Blueprint("page", __name__, template_folder="templates")
    route = partial(Route, scope=Scope.OPERATOR, for_people=True)
    blueprint.add_url_rule("/", "page", route(_page, services))
    blueprint.add_url_rule("/page/jobs", "jobs", route(_jobs, services))
    blueprint.add_url_rule("/page/script.js", "script", Route(_script, scope=None))
    return blueprint


def _page(services: Services) -> Response:
    logs = services.logs
    listing = services.catalogue.listing()
    dropped = {device.device: device.dropped for device in logs.devices()}
    return _html(
        "page.html",
        listing=listing,
        devices=device_rows(logs.latest_of_each_event(DEVICES), bundle_names(listing), dropped),
        events=event_rows(logs.latest(LATEST_EVENTS)),
        jobs=_job_rows(services),
        style=_STYLE,
        version=__version__,
        closed=services.gate.closed,
    )


def _jobs(services: Services) -> Response:
    return _html("jobs.html", jobs=_job_rows(services))


def _script() -> Response:
    return Response(_SCRIPT, mimetype="text/javascript", headers={"Cache-Control": "no-cache"})


def _job_rows(services: Services) -> list[Row]:
    return job_rows((job, services.runner.progress_of(job)) for job in services.jobs.latest(JOBS))


def _html(template: str, **values: Any) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return Response(render_template(template, **values), headers=headers)
