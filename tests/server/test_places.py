"""Commands that name a database and an object store: serve, serve --check, admin, migrate-state."""

from __future__ import annotations

import json

import pytest

from pathweave.cli import main
from server.access.tokens import TokenStore
from server.fleet.store import FleetStore
from server.jobs.job_request import JobRequest
from server.jobs.leases import Leases
from server.jobs.store import JobStore
from server.settings import database_path
from server.state.database import Database
from server.state.log_store import LogStore, check_lines
from tests.contract.signed_files import key_list, release


@pytest.fixture
def run(capsys):
    """Runs a command; returns what it printed, as JSON."""

    def run(*arguments, status=0):
        assert main([*map(str, arguments), "--json"]) == status
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.fixture
def fail(capsys):
    """Runs a command that is wrong; returns what it said."""

    def fail(*arguments, status=2):
        assert main(list(map(str, arguments))) == status
        found = capsys.readouterr()
        return found.out + found.err

    return fail


@pytest.fixture
def folder(tiny, tmp_path):
    tiny.copy_to(tmp_path / "bundles" / "tiny")
    return tmp_path / "bundles"


def test_checking_an_embedded_server_changes_nothing(run, folder):
    found = run("serve", folder, "--check")
    assert (found["ok"], found["database"]["found"]) == (True, "will be created")
    assert found["bundles"]["found"].endswith("bundles: 1")
    assert sorted(path.name for path in folder.iterdir()) == ["tiny"]


def test_checking_a_fleets_database_and_store(run, postgres, s3, tmp_path):
    place = ("--bundles", s3.new(), "--data", tmp_path / "data", "--check")
    empty = run("serve", "--database", postgres.empty(), *place)
    assert (empty["ok"], "will be brought to" in empty["database"]["found"]) == (True, True)
    found = run("serve", "--database", postgres.new(), *place)
    assert "answers, its schema is" in found["database"]["found"]
    assert "conditional writes" in found["bundles"]["found"]


def test_checking_says_which_is_away_and_shows_no_password(capsys, monkeypatch, folder, tmp_path):
    pytest.importorskip("psycopg", reason="needs the extra: pip install 'pathweave[fleet]'")
    monkeypatch.setenv("PATHWEAVE_DATABASE_URL", f"postgresql://me:hunter2@/d?host={tmp_path}")
    assert main(["serve", str(folder), "--check", "--json"]) == 1
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[-1])
    assert (found["ok"], found["database"]["ok"], found["bundles"]["ok"]) == (False, False, True)
    assert "hunter2" not in said.out + said.err


def test_a_password_on_the_command_line_is_refused(fail, folder):
    said = fail("serve", folder, "--database", "postgresql://me:hunter2@h/d")
    assert "PATHWEAVE_DATABASE_URL" in said
    assert "hunter2" not in said


def test_what_makes_no_sense_is_refused(fail, folder, tmp_path):
    assert "once" in fail("serve")
    assert "once" in fail("serve", folder, "--bundles", "s3://b/x")
    assert "--data" in fail("serve", "--bundles", "s3://b/x")
    assert "no URL" in fail("serve", folder, "--check", "--database", "mysql://h/d", status=1)
    assert "which servers' jobs" in fail("worker", "--bundles", folder)
    assert "no folder" in fail("worker", "--bundles", tmp_path / "none", "--database", "postgresql://h/d")
    assert "cannot be a tag" in fail("worker", "--bundles", folder, "--database", "postgresql://h/d", "--tag", "A B")
    assert "signed URLs" in fail("serve", folder, "--port", 0, "--signed-urls", "--data", tmp_path / "d")
    assert "which server" in fail("admin", "token", "list")
    assert "where to" in fail("migrate-state", folder)


def test_tokens_of_a_fleet(run, postgres):
    url = postgres.new()
    made = run("admin", "token", "new", "pi", "--database", url)
    assert TokenStore(Database(url)).owner(made["token"]).name == "pi"
    assert [token["name"] for token in run("admin", "token", "list", "--database", url)["tokens"]] == ["pi"]


def test_bundles_of_a_fleet(run, fail, tiny, s3):
    place = ("--bundles", s3.new())
    assert run("admin", "bundles", "list", *place) == {"bundles": [], "broken": []}
    assert run("admin", "bundles", "publish", tiny.folder, *place) == {"name": "tiny", "version": 1}
    assert run("admin", "bundles", "publish", tiny.folder, *place) == {"name": "tiny", "version": 1}
    [listed] = run("admin", "bundles", "list", *place)["bundles"]
    assert (listed["name"], listed["version"]) == ("tiny", 1)
    run("admin", "bundles", "remove", "tiny", 1, *place)
    assert run("admin", "bundles", "list", *place)["bundles"] == []
    assert "no version" in fail("admin", "bundles", "remove", "tiny", 1, *place, status=1)


@pytest.fixture
def filled(folder, clock, log_line, ndjson):
    """An embedded server's folder with rows of all kinds, two bundles and key lists; its token."""
    database = Database(database_path(folder / ".pathweave-server"))
    token = TokenStore(database, now=clock).new("laptop", days=30)
    logs = LogStore(database, keep_lines=600, now=clock)
    lines = [log_line(minute, subnet=f"o{number}") for number in range(41) for minute in range(25)]
    logs.add("pi-1", check_lines(ndjson(*lines), max_line_bytes=64_000))
    jobs = JobStore(database, now=clock)
    for number in ("done", "waits"):
        request = JobRequest(name="a", model="zoo:x", data="d", validation="v")
        jobs.add(number, request, client="me", weights_sha256=None, max_queued=9)
    done, _ = Leases(database, "here", now=clock).take()
    jobs.finish(done, "ff")
    database.close()
    (folder / "keys").mkdir()
    (folder / "keys" / "1.json").write_bytes(key_list())
    (folder / "tiny" / "release.json").write_bytes(release(b"one"))
    (folder / "broken").mkdir()
    (folder / "broken" / "manifest.json").write_text("{")
    return token


def contents(folder):
    """All files but those that SQLite keeps beside an open database."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm")))
    return {path: path.read_bytes() for path in files}


def test_state_moves_once_and_whole(run, folder, filled, postgres, s3, clock, tmp_path):
    url, store = postgres.empty(), s3.new()
    place = (folder, "--database", url, "--bundles", store)
    before = contents(folder)
    planned = run("migrate-state", *place, "--dry-run")
    assert {one["table"]: (one["rows"], one["moved"]) for one in planned["tables"]} == {
        "tokens": (1, 0),
        "enrolment_codes": (0, 0),
        "retention": (1, 0),
        "dropped_lines": (425, 0),
        "log_lines": (600, 0),
        "jobs": (1, 0),
        **dict.fromkeys(("bundle_devices", "rollouts", "rollout_devices", "rollout_counts"), (0, 0)),
    }
    moved = run("migrate-state", *place)
    assert {one["table"]: one["moved"] for one in moved["tables"]}["log_lines"] == 600
    assert (moved["unfinished_jobs"], [one["folder"] for one in moved["broken"]]) == (1, ["broken"])
    [version] = moved["versions"]
    assert (version["name"], version["version"], version["size_bytes"] > 0) == ("tiny", 1, True)
    again = run("migrate-state", *place)
    assert all(one["moved"] == one["differing"] == 0 for one in again["tables"])
    assert contents(folder) == before
    database = Database(url)
    assert TokenStore(database, now=clock).owner(filled).name == "laptop"
    [device] = FleetStore(database).senders()
    assert (device.lines, device.dropped) == (600, 425)
    database.close()


def test_a_move_that_was_cut_short_goes_on_and_nothing_that_changed_there_is_overwritten(
    run, folder, filled, postgres, clock
):
    url = postgres.new()
    target = Database(url)
    tokens = TokenStore(target, now=clock)
    tokens.new("laptop", days=30)
    moved = run("migrate-state", folder, "--database", url)
    assert {one["table"]: (one["moved"], one["differing"]) for one in moved["tables"]}["tokens"] == (0, 1)
    assert [info.name for info in tokens.all()] == ["laptop"]
    target.close()
