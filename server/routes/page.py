"""``GET /`` and ``/page/…``: what an operator sees of the server and its fleet, live, as HTML, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flask import Blueprint, Response, request

from server.access.authentication import client
from server.access.route import Route
from server.access.scopes import Scope
from server.page.bundles import bundle, bundles
from server.page.devices import device, devices
from server.page.jobs import job, jobs
from server.page.overview import overview
from server.page.reply import SCRIPT, TEMPLATES, asked_by, reply_to
from server.page.rollouts import rollout, rollouts
from server.page.table import View
from server.page.tokens import tokens
from server.services import Services


def routes(services: Services) -> Blueprint:
    """The routes of the page."""
    blueprint = Blueprint("page", __name__, template_folder=str(TEMPLATES))

    def add(rule: str, make: Callable[..., View], scope: Scope = Scope.OPERATOR) -> None:
        route = Route(partial(_view, services, make), scope=scope, for_people=True)
        blueprint.add_url_rule(rule, make.__name__, route)

    add("/", overview)
    add("/page/devices", devices)
    add("/page/devices/<device>", device)
    add("/page/bundles", bundles)
    add("/page/bundles/<name>", bundle)
    add("/page/rollouts", rollouts)
    add("/page/rollouts/<rollout_number>", rollout)
    add("/page/jobs", jobs)
    add("/page/jobs/<job_id>", job)
    add("/page/tokens", tokens, Scope.ADMIN)
    blueprint.add_url_rule("/page/script.js", "script", Route(_script, scope=None))
    return blueprint


def _view(services: Services, make: Callable[..., View], **values: str) -> Response:
    asked = asked_by(request)
    view = make(services, asked, *values.values())
    return reply_to(request, view, asked, client=client(), closed=services.gate.closed)


def _script() -> Response:
    return Response(SCRIPT, mimetype="text/javascript", headers={"Cache-Control": "no-cache"})
