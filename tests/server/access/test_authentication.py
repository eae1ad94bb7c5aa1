from __future__ import annotations

import base64

import pytest

from server.access.scopes import Scope
from server.access.tokens import TokenStore


@pytest.fixture
def own_server(serve, tiny):
    """A server whose tokens the test makes."""
    return serve(tiny.folder)


@pytest.fixture
def store(own_server):
    return own_server.services.tokens


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


ADDRESSES = ["/", "/v1/bundles", "/v1/bundles/tiny/manifest.json", "/v1/devices", "/v2", "/v2/models/tiny", "/nothing"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_closed_server_asks_for_a_token_everywhere(own_server, store, address):
    token = store.new("laptop", days=1, scope=Scope.OPERATOR)
    for headers in ({}, bearer("wrong"), {"Authorization": "Bearer"}, {"Authorization": token}, bearer("ÿ")):
        reply = own_server.ask(address, headers=headers)
        assert reply.status == 401
        assert "token" in reply.json()["error"]
        assert reply.headers["www-authenticate"].split()[0] == ("Basic" if address == "/" else "Bearer")
    assert own_server.ask(address, headers=bearer(token)).status == (404 if address == "/nothing" else 200)


def test_posts_are_asked_as_well(own_server, store):
    store.new("laptop", days=1)
    for address in ("/v1/logs", "/v1/placements", "/v1/jobs", "/v2/models/tiny/infer"):
        assert own_server.post(address, {}).status == 401


def test_health_is_open_and_tells_no_names(own_server, store):
    store.new("laptop", days=1)
    for address in ("/health", "/v2/health/live", "/v2/health/ready"):
        reply = own_server.ask(address)
        assert reply.status == 200
        assert b"tiny" not in reply.body


def test_expired_revoked_and_wrong_are_told_apart(serve, tiny, clock):
    server = serve(tiny.folder)
    token = TokenStore(server.services.database, now=clock).new("old", days=1)  # in the clock's past
    assert server.ask("/v1/bundles", headers=bearer(token)).json()["error"] == "the token has expired"
    assert server.ask("/v1/bundles", headers=bearer("pw_x")).json()["error"] == "the token is wrong"
    assert server.ask("/v1/bundles").json()["error"] == "this server requires a token"


def test_the_first_token_and_its_end_are_seen_at_once(own_server, store):
    assert own_server.ask("/v1/bundles").status == 200
    token = store.new("laptop", days=1)
    assert own_server.ask("/v1/bundles").status == 401
    assert own_server.ask("/v1/bundles", headers=bearer(token)).status == 200
    store.revoke("laptop")
    assert own_server.ask("/v1/bundles", headers=bearer(token)).json()["error"] == "the token has been revoked"


def test_the_token_of_the_settings_is_asked_for(serve, tiny):
    server = serve(tiny.folder, token="secret")
    assert server.ask("/v1/bundles").status == 401
    assert server.ask("/v1/bundles", headers=bearer("secret")).status == 200


def test_browsers_send_the_token_as_a_password_and_only_for_the_page(serve, tiny):
    server = serve(tiny.folder, token="secret")

    def basic(password):
        return {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}

    assert server.ask("/", headers=basic("secret")).status == 200
    assert server.ask("/", headers=basic("other")).status == 401
    assert server.ask("/", headers={"Authorization": "Basic %%%"}).status == 401
    assert server.ask("/v1/bundles", headers=basic("secret")).status == 401


def test_errors_of_the_protocol_have_no_hint(serve, tiny):
    server = serve(tiny.folder, token="secret")
    assert set(server.ask("/v2/models/tiny").json()) == {"error"}
    assert set(server.ask("/v1/bundles").json()) == {"error", "hint"}
