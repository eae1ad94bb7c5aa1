from __future__ import annotations

import pytest

from server.access.route import Route
from server.access.scopes import Scope
from server.app import create_app

pytestmark = pytest.mark.replicas(3)

VALUES = {
    "name": "x",
    "job_id": "x",
    "model": "x",
    "version": "1",
    "blob": "x",
    "number": "1",
    "device": "x",
    "rollout_number": "1",
}


PUBLIC = {
    "health.health",
    "health.openapi",
    "health.ready",
    "inference.live",
    "inference.ready",
    "page.script",
    "tokens.enrol",
}


@pytest.fixture
def app(server):
    return create_app(server.services.settings, services=server.services)


def test_every_address_declares_its_scope_and_the_public_ones_are_these(app):
    assert all(isinstance(view, Route) for view in app.view_functions.values())
    assert {endpoint for endpoint, view in app.view_functions.items() if view.scope is None} == PUBLIC


def test_each_route_refuses_every_lower_scope_and_admits_its_own(serve, tiny, app):
    server = serve(tiny.folder)
    tokens = {scope: server.services.tokens.new(scope.label, days=1, scope=scope) for scope in Scope}
    for rule in app.url_map.iter_rules():
        required = app.view_functions[rule.endpoint].scope
        method = next(iter(rule.methods - {"HEAD", "OPTIONS"}))
        path = rule.rule
        for name, value in VALUES.items():
            path = path.replace(f"<{name}>", value)
        assert (server.ask(path, method=method).status == 401) == (required is not None)
        for scope, token in tokens.items():
            status = server.ask(path, method=method, headers={"Authorization": f"Bearer {token}"}).status
            assert (status == 403) == (required is not None and scope < required), (path, scope)


def test_of_two_devices_neither_sees_the_other(serve, tiny, log_line, ndjson):
    server = serve(tiny.folder)
    store = server.services.tokens
    a, b = ({"Authorization": f"Bearer {store.new(name, days=1, device=name)}"} for name in ("a", "b"))
    body = ndjson(log_line(1))
    assert server.ask("/v1/logs", method="POST", body=body, headers={"Pathweave-Device": "a", **a}).status == 200
    for device, status in (("a", 403), ("b", 200)):
        headers = {"Pathweave-Device": device, **b}
        assert server.ask("/v1/logs", method="POST", body=body, headers=headers).status == status
    for path in ("/", "/page/jobs", "/page/devices", "/page/tokens", "/v1/devices", "/v1/jobs", "/v1/tokens"):
        assert server.ask(path, headers=b).status == 403
