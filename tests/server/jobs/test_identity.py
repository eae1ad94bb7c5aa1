"""Attacks of a client that holds the token of a device, and of a web page in a browser beside the server."""

from __future__ import annotations

import json

import pytest

from pathweave.cli import main
from server.access.scopes import Scope
from server.access.tokens import TokenStore
from server.settings import database_path
from server.state.database import Database

OPERATOR = {"Authorization": "Bearer secret"}
JSON_TYPE = {"Content-Type": "application/json"}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def store(tmp_path):
    return TokenStore(Database(database_path(tmp_path / "data")))


@pytest.fixture
def device(store):
    """The headers of a device's token."""
    return bearer(store.new("mallory", days=1))


@pytest.fixture
def closed(serve, bundles, fake_packager, tiny, device):
    """A server that signs, serves the bundle ``digits`` and requires a token."""
    tiny.copy_to(bundles / "digits", name="digits", version=1)
    return serve(bundles, package_command=fake_packager, signing_key=tiny.private_key, token="secret")


def test_a_device_cannot_have_a_served_bundle_replaced(closed, device, job_request):
    reply = closed.post("/v1/jobs", job_request(name="digits"), **device)
    assert reply.status == 403
    assert "scope" in reply.json()["error"]


def test_a_packaged_bundle_is_not_served_under_the_name_of_its_job(closed, job_request, eventually):
    address = closed.post("/v1/jobs", job_request(name="digits"), **OPERATOR).headers["location"]
    eventually(lambda: closed.ask(address, headers=OPERATOR).json()["state"] == "done")
    assert closed.ask("/v1/bundles/digits", headers=OPERATOR).json()["version"] == 1


def test_a_device_cannot_cancel_a_job(closed, device, job_request):
    address = closed.post("/v1/jobs", job_request("waits"), **OPERATOR).headers["location"]
    assert closed.ask(address, method="DELETE", headers=device).status == 403
    assert closed.ask(address, headers=OPERATOR).json()["state"] != "cancelled"


def test_a_device_cannot_write_into_the_log_of_another(closed, device, log_line, ndjson):
    def send(line, headers):
        return closed.ask("/v1/logs", method="POST", body=ndjson(line), headers={"Pathweave-Device": "pi-1", **headers})

    assert send(log_line(1), OPERATOR).status == 200
    assert send(log_line(2), device).status == 403
    assert closed.ask("/v1/devices", headers=OPERATOR).json()["devices"][0]["lines"] == 1


def test_lines_dated_into_the_future_hide_no_later_ones(serve, tiny, log_line, ndjson, clock):
    server = serve(tiny.folder, now=clock, keep_log_lines=5)

    def send(*lines):
        return server.ask("/v1/logs", method="POST", body=ndjson(*lines), headers={"Pathweave-Device": "pi"}).json()

    future = [{**log_line(n), "time": f"9999-01-01T00:{n:02d}:00.000+00:00"} for n in range(5)]
    assert send(*future)["accepted"] == 5
    later = send(log_line(30), log_line(31))
    assert (later["accepted"], later["duplicates"]) == (2, 0)


def test_a_recipe_names_no_file_of_the_server(packaging_server, job_request):
    recipe = {"steps": 5, "branch_weights": "/etc/passwd"}
    reply = packaging_server.post("/v1/jobs", job_request(recipe=recipe), **JSON_TYPE)
    assert reply.status == 422
    assert "branch_weights" in reply.json()["error"]


def test_of_two_packagers_neither_sees_or_cancels_the_jobs_of_the_other(closed, store, job_request):
    a, b = (bearer(store.new(name, days=1, scope=Scope.PACKAGE)) for name in ("a", "b"))
    address = closed.post("/v1/jobs", job_request("waits"), **a).headers["location"]
    assert closed.ask("/v1/jobs", headers=b).json()["jobs"] == []
    for end, method in (("", "GET"), ("", "DELETE"), ("/log", "GET")):
        reply, unknown = (closed.ask(f"{at}{end}", method=method, headers=b) for at in (address, "/v1/jobs/x"))
        assert (reply.status, reply.json()) == (404, unknown.json())
    for headers in (a, b):
        assert closed.post(f"{address}/publish", {}, **headers).status == 403
    told = closed.ask(address, headers=OPERATOR).json()
    assert (told["client"], told["bundle"]) == ("a", "jobs/a/digits")
    assert closed.ask(address, method="DELETE", headers=a).json()["state"] == "cancelled"


def test_publishing_is_an_operators_act(closed, job_request, eventually, capsys):
    address = closed.post("/v1/jobs", job_request(name="mine"), **OPERATOR).headers["location"]
    assert closed.post(f"{address}/publish", {"name": 7}, **OPERATOR).status == 400
    eventually(lambda: closed.ask(address, headers=OPERATOR).json()["state"] == "done")
    job_id = address.rpartition("/")[2]
    assert main(["admin", "jobs", "publish", closed.url, job_id, "--name", "digits", "--token", "secret"]) == 0
    assert capsys.readouterr().out == "serves digits 2\n"
    told = closed.ask(address, headers=OPERATOR).json()
    assert (told["bundle"], told["version"], told["published_by"]) == ("digits", 2, "environment")
    assert closed.ask("/v1/bundles/digits", headers=OPERATOR).json()["digest"] == told["digest"]
    assert closed.post(f"{address}/publish", {"name": "other"}, **OPERATOR).status == 409
    assert main(["admin", "jobs", "list", closed.url, "--token", "secret"]) == 0
    assert capsys.readouterr().out == f"{job_id}  done  digits 2\n"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "rebound.example:8000", **JSON_TYPE}, 403),
        ({"Origin": "https://evil.example", **JSON_TYPE}, 403),
        ({"Origin": "null", **JSON_TYPE}, 403),
        ({"Sec-Fetch-Site": "same-site", **JSON_TYPE}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
    ],
)
def test_a_web_page_posts_no_job_to_an_open_server(packaging_server, job_request, headers, status):
    body = json.dumps(job_request()).encode()
    assert packaging_server.ask("/v1/jobs", method="POST", body=body, headers=headers).status == status
    assert packaging_server.ask("/v1/jobs").json()["jobs"] == []
