from __future__ import annotations

import pytest

from server.access.scopes import SCOPE_OF, Scope, required_scope
from server.access.tokens import TokenStore
from server.app import create_app
from server.settings import database_path
from server.state.database import Database

VALUES = {"name": "x", "job_id": "x", "model": "x", "version": "1", "blob": "x", "number": "1"}


@pytest.fixture
def rules(server):
    """The rules of all routes."""
    return list(create_app(server.services.settings, services=server.services).url_map.iter_rules())


def test_every_route_has_a_scope_or_is_public_on_purpose(rules):
    assert {rule.endpoint for rule in rules} == set(SCOPE_OF)


def test_what_is_not_in_the_table_requires_the_highest_scope():
    assert required_scope("new.route") is Scope.ADMIN
    assert required_scope(None) is Scope.DEVICE


def test_each_route_refuses_every_lower_scope_and_admits_its_own(serve, tiny, tmp_path, rules):
    store = TokenStore(Database(database_path(tmp_path / "data")))
    tokens = {scope: store.new(scope.label, days=1, scope=scope) for scope in Scope}
    server = serve(tiny.folder)
    for rule in rules:
        required = SCOPE_OF[rule.endpoint]
        method = next(iter(rule.methods - {"HEAD", "OPTIONS"}))
        path = rule.rule
        for name, value in VALUES.items():
            path = path.replace(f"<{name}>", value)
        assert (server.ask(path, method=method).status == 401) == (required is not None)
        for scope, token in tokens.items():
            status = server.ask(path, method=method, headers={"Authorization": f"Bearer {token}"}).status
            assert (status == 403) == (required is not None and scope < required), (path, scope)


def test_of_two_devices_neither_sees_the_other(serve, tiny, tmp_path, log_line, ndjson):
    store = TokenStore(Database(database_path(tmp_path / "data")))
    a, b = ({"Authorization": f"Bearer {store.new(name, days=1, device=name)}"} for name in ("a", "b"))
    server = serve(tiny.folder)
    body = ndjson(log_line(1))
    assert server.ask("/v1/logs", method="POST", body=body, headers={"Pathweave-Device": "a", **a}).status == 200
    for device, status in (("a", 403), ("b", 200)):
        headers = {"Pathweave-Device": device, **b}
        assert server.ask("/v1/logs", method="POST", body=body, headers=headers).status == status
    for path in ("/", "/page/jobs", "/v1/devices", "/v1/jobs", "/v1/tokens"):
        assert server.ask(path, headers=b).status == 403
