"""Publishing with the command: tests/server/jobs/test_identity.py."""

from __future__ import annotations

import json

import pytest

from device_sdk.errors import ProtocolError
from pathweave.cli import main
from server.access.scopes import Client, Scope
from server.access.tokens import TokenStore
from server.admin import Enrolled
from server.asking import decode_reply
from server.settings import database_path
from server.state.database import Database


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def run(capsys):
    """Runs ``pathweave admin token …``; returns what it printed."""

    def run(*arguments, status=0):
        assert main(["admin", "token", *map(str, arguments)]) == status
        return capsys.readouterr().out.strip()

    return run


def owner(data, text):
    return TokenStore(Database(database_path(data))).owner(text)


def test_tokens_have_scope_device_and_expiry(run, data):
    text = run("new", "ci", "--scope", "package", "--device", "ci-1", "--expires-days", 2, "--data", data)
    assert owner(data, text) == Client("ci", Scope.PACKAGE, "ci-1")
    assert owner(data, run("new", "pi", "--data", data)) == Client("pi", Scope.DEVICE)
    first, second = json.loads(run("list", "--data", data, "--json"))["tokens"]
    assert (first["name"], first["scope"], first["device"]) == ("ci", "package", "ci-1")
    assert (second["name"], second["scope"], second["device"]) == ("pi", "device", None)


def test_rotating_and_restricting(run, data):
    run("new", "pi", "--scope", "operator", "--data", data)
    text = run("rotate", "pi", "--data", data)
    run("restrict", "pi", "--device", "pi-1", "--data", data)
    assert owner(data, text) == Client("pi", Scope.DEVICE, "pi-1")
    run("restrict", "pi", "--scope", "admin", "--data", data, status=2)
    run("new", "x", "--scope", "root", "--data", data, status=2)


@pytest.mark.embedded
def test_a_device_enrols_with_a_code(run, data, serve, tiny):
    server = serve(tiny.folder, data_folder=data)
    code = run("enrol-code", "--device", "pi-1", "--expires-minutes", 5, "--data", data)
    assert owner(data, run("enrol", server.url, code, "--device", "pi-1")) == Client("pi-1", Scope.DEVICE, "pi-1")
    run("enrol", server.url, code, "--device", "pi-1", status=1)


@pytest.mark.embedded
def test_without_a_name_it_enrols_as_the_device_of_its_logs(run, data, serve, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PATHWEAVE_STATE", str(tmp_path / "state"))
    server = serve(tiny.folder, data_folder=data)
    made = owner(data, run("enrol", server.url, run("enrol-code", "--data", data)))
    assert made.device == (tmp_path / "state" / "device").read_text().strip()


def test_a_reply_that_breaks_the_protocol():
    with pytest.raises(ProtocolError):
        decode_reply(b"{}", Enrolled, what="enrolment")


def test_an_empty_list_of_jobs_and_refusals(serve, tiny, capsys):
    server = serve(tiny.folder, token="secret")
    jobs = ("admin", "jobs")
    assert main([*jobs, "list", server.url, "--token", "secret"]) == 0
    assert capsys.readouterr().out.strip() == "no job"
    assert main([*jobs, "publish", server.url, "unknown", "--token", "secret"]) == 1
    assert "there is no such job" in capsys.readouterr().err
    assert main([*jobs, "list", server.url, "--token", "wrong"]) == 1
