"""``GET /``: the page for people."""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from pathlib import Path

from flask import Blueprint, Response, render_template

from device_sdk import __version__
from server.overview import DEVICES, LATEST_EVENTS, overview
from server.services import Services

_STYLE = (Path(__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# Nothing but the page's own style is let in: names that devices sent could not load or run anything.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src 'sha256-{_STYLE_DIGEST}'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def page_routes(services: Services) -> Blueprint:
    """The address of the page."""
    routes = Blueprint("page", __name__, template_folder="templates")
    routes.add_url_rule("/", "page", partial(_page, services))
    return routes


def _page(services: Services) -> Response:
    logs = services.logs
    shown = overview(services.catalogue.listing(), logs.latest_of_each_event(DEVICES), logs.latest(LATEST_EVENTS))
    html = render_template("page.html", shown=shown, style=_STYLE, version=__version__, closed=services.gate.closed)
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return Response(html, headers=headers)
