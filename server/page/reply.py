"""A view as a reply: HTML under a strict content security policy, CSV or JSON."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flask import Request, Response, render_template

from device_sdk import __version__
from server.access.scopes import Client, Scope
from server.errors import MalformedError
from server.page.asked import Asked
from server.page.charts import bar
from server.page.exports import csv_text, json_text
from server.page.figures import ago, milliseconds, moment, number, share
from server.page.table import Table, View

TEMPLATES = Path(__file__).parent / "templates"
STYLE = (TEMPLATES / "page.css").read_text(encoding="utf-8")
SCRIPT = (TEMPLATES / "page.js").read_text(encoding="utf-8")
_HTML, _JSON, _CSV = "text/html", "application/json", "text/csv"
_SHOWN = {"ago": ago, "milliseconds": milliseconds, "moment": moment, "number": number, "share": share, "bar": bar}
_FORMATS = {"html": _HTML, "json": _JSON, "csv": _CSV}
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# Content security policy: only the page's own style and script, so names sent by devices cannot load or run anything,
# and forms lead nowhere else. Other responses of this server have content types that browsers do not execute.
POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src 'sha256-{_STYLE_DIGEST}'",
        "script-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


@dataclass(frozen=True)
class Tab:
    """An entry of the navigation. ``scope``: of the clients that see it."""

    name: str
    label: str
    path: str
    scope: Scope = Scope.OPERATOR


TABS = (
    Tab("overview", "Overview", "/"),
    Tab("devices", "Devices", "/page/devices"),
    Tab("bundles", "Bundles", "/page/bundles"),
    Tab("rollouts", "Rollouts", "/page/rollouts"),
    Tab("jobs", "Jobs", "/page/jobs"),
    Tab("tokens", "Tokens", "/page/tokens", Scope.ADMIN),
)


def asked_by(request: Request) -> Asked:
    """Parameters of a request's view. ``format`` and ``table`` are of the reply, and left out."""
    return Asked(request.path, {name: value for name, value in request.args.items() if name not in ("format", "table")})


def reply_to(request: Request, view: View, asked: Asked, *, client: Client, closed: bool) -> Response:
    """The view in the format that ``?format=`` or the header Accept asks for.

    Raises:
        MalformedError: no such format or table.
    """
    kind = _format(request)
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "Vary": "Accept"}
    if kind == _HTML:
        return _html(request, view, asked, headers, client=client, closed=closed)
    tables = _tables(request, view)
    if kind == _JSON:
        return Response(json_text(tables), mimetype=_JSON, headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="{tables[0].name}.csv"'
    return Response(csv_text(tables[0]), mimetype=_CSV, headers=headers)


def _format(request: Request) -> str:
    named = request.args.get("format")
    if named is None:
        return request.accept_mimetypes.best_match(list(_FORMATS.values()), default=_HTML) or _HTML
    if named not in _FORMATS:
        raise MalformedError("there is no such format", hint=f"one of {', '.join(_FORMATS)}")
    return _FORMATS[named]


def _tables(request: Request, view: View) -> tuple[Table, ...]:
    named = request.args.get("table")
    if named is None:
        return view.tables
    found = tuple(table for table in view.tables if table.name == named)
    if not found:
        raise MalformedError("there is no such table", hint=f"one of {', '.join(one.name for one in view.tables)}")
    return found


def _html(
    request: Request, view: View, asked: Asked, headers: Mapping[str, str], *, client: Client, closed: bool
) -> Response:
    text = render_template(
        view.template,
        view=view,
        tabs=[tab for tab in TABS if client.may(tab.scope)],
        asked=asked,
        shown=_SHOWN,
        style=STYLE,
        server_version=__version__,
        closed=closed,
        **view.values,
    )
    reply = Response(text, headers={**headers, "Content-Security-Policy": POLICY})
    reply.set_etag(hashlib.sha256(text.encode()).hexdigest())
    reply.make_conditional(request)
    return reply
