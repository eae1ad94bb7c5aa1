from __future__ import annotations

import pytest

from server.access.scopes import Scope

pytestmark = pytest.mark.replicas(3)


@pytest.fixture
def started(serve, tiny):
    """A server, and the headers of its administrator."""
    server = serve(tiny.folder)
    token = server.services.tokens.new("root", days=1, scope=Scope.ADMIN)
    return server, {"Authorization": f"Bearer {token}"}


def test_a_device_enrols_and_uses_its_token_until_it_is_revoked(started, log_line, ndjson):
    server, admin = started
    made = server.post("/v1/enrolment-codes", {"device": "pi-1", "expires_minutes": 5}, **admin)
    assert (made.status, made.headers["cache-control"]) == (201, "no-store")
    reply = server.post("/v1/enrolments", {"code": made.json()["code"]})
    assert (reply.status, reply.headers["cache-control"]) == (201, "no-store")
    assert (reply.json()["device"], reply.json()["scope"]) == ("pi-1", "device")
    token = {"Authorization": f"Bearer {reply.json()['token']}"}
    headers = {"Pathweave-Device": "pi-1", **token}
    assert server.ask("/v1/logs", method="POST", body=ndjson(log_line()), headers=headers).status == 200
    listed = server.ask("/v1/tokens", headers=admin)
    assert {info["name"]: info["device"] for info in listed.json()["tokens"]} == {"root": None, "pi-1": "pi-1"}
    assert reply.json()["token"] not in listed.body.decode()
    assert server.ask("/v1/tokens/pi-1", method="DELETE", headers=admin).json()["state"] == "revoked"
    assert server.ask("/v1/bundles", headers=token).status == 401
    assert server.ask("/v1/tokens/none", method="DELETE", headers=admin).status == 404


def test_guessing_codes_is_cut_off(started):
    server, admin = started
    code = server.post("/v1/enrolment-codes", {"device": "pi-1"}, **admin).json()["code"]
    statuses = [server.post("/v1/enrolments", {"code": f"GUESS-{n}"}).status for n in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    refused = server.post("/v1/enrolments", {"code": code})
    assert (refused.status, refused.headers["retry-after"]) == (429, "900")


@pytest.mark.parametrize("value", [{}, [], {"code": 7}, {"code": "x" * 101}, {"code": "x", "scope": "admin"}])
def test_what_is_no_enrolment_is_malformed(started, value):
    server, _ = started
    assert server.post("/v1/enrolments", value).status == 400
