"""The commands as processes of their own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PATHWEAVE_TOKEN"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT)
PATIENCE_S = 30

# `pathweave serve` with a model that takes a while, so that a signal finds a request in flight.
SLOW_SERVER = """
import sys, time
from device_sdk.runtimes import RUNTIMES, OnnxRuntime
from pathweave.cli import main

class Slow:
    identity, reads, providers = "slow", OnnxRuntime.reads, OnnxRuntime.providers
    def __init__(self, **settings):
        pass
    def load(self, stretch):
        loaded = OnnxRuntime(threads=1).load(stretch)
        class Stretch:
            def run(self, inputs):
                print("started", file=sys.stderr, flush=True)
                time.sleep(1.0)
                return loaded.run(inputs)
            def close(self):
                pass
        return Stretch()

RUNTIMES["onnxruntime"] = Slow
sys.exit(main(["serve", *sys.argv[1:]]))
"""
SERVE = ("-m", "pathweave", "serve")


def pathweave(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pathweave", *map(str, arguments)],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@contextmanager
def started(*arguments, program=SERVE, **environment):
    process = subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, process.stdout.readline()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(url, path="/v1/bundles", *, method="GET", body=None, headers=None):
    host, port = url.removeprefix("http://").split(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)) as connection:
        connection.request(method, path, body=body, headers=headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read()


@pytest.fixture
def bundles(tiny, tmp_path):
    tiny.copy_to(tmp_path / "bundles" / "tiny")
    return tmp_path / "bundles"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serving_until_a_signal(bundles, number):
    with started(bundles, "--port", 0, "--json") as (process, line):
        told = json.loads(line)
        assert [bundle["name"] for bundle in told["bundles"]] == ["tiny"]
        assert ask(told["url"])[0] == 200
        process.send_signal(number)
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in errors


def test_a_person_reads_one_line(bundles):
    with started(bundles, "--port", 0) as (_, line):
        url, *rest = line.split()
        assert " ".join(rest) == "serves tiny 1"
        assert ask(url, "/health")[0] == 200
    assert (bundles / ".pathweave-server").is_dir()


def test_a_signal_lets_a_request_in_flight_finish(bundles):
    images = {"name": "image", "datatype": "UINT8", "shape": [1, 20, 20, 3], "data": [7] * 1200}
    body = json.dumps({"inputs": [images]}).encode()
    head = f"POST /v2/models/tiny:images/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with started(bundles, "--port", 0, "--json", program=("-c", SLOW_SERVER)) as (process, line):
        host, port = json.loads(line)["url"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            connection.sendall(head + body)
            assert process.stderr.readline() == "started\n"
            process.terminate()
            reply = b"".join(iter(lambda: connection.recv(65536), b""))
        assert process.wait(PATIENCE_S) == 0
    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert b'"logits"' in reply


def test_a_port_in_use_is_one_line_and_status_1(bundles):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = pathweave("serve", bundles, "--port", taken.getsockname()[1])
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert "in use" in error
    assert "--port" in hint


def test_beyond_this_machine_only_with_a_token_or_on_purpose(bundles, tmp_path):
    everywhere = (bundles, "--host", "0.0.0.0", "--port", 0, "--data", tmp_path / "data", "--json")
    refused = pathweave("serve", *everywhere)
    assert refused.returncode == 2
    assert "--allow-anyone" in refused.stderr
    assert f"--data {tmp_path / 'data'}" in refused.stderr
    with started(*everywhere, "--allow-anyone") as (_, line):
        assert ask(json.loads(line)["url"])[0] == 200
    with started(*everywhere, PATHWEAVE_TOKEN="secret") as (_, line):
        assert ask(json.loads(line)["url"])[0] == 401
    pathweave("admin", "token", "new", "laptop", "--data", tmp_path / "data")
    with started(*everywhere) as (_, line):
        assert ask(json.loads(line)["url"])[0] == 401


def test_a_token_is_made_used_and_revoked_while_the_server_runs(bundles, tmp_path):
    data = ("--data", tmp_path / "data")
    with started(bundles, "--port", 0, *data, "--json") as (_, line):
        url = json.loads(line)["url"]
        made = pathweave("admin", "token", "new", "laptop", *data)
        token = made.stdout.strip()
        assert ask(url)[0] == 401
        assert ask(url, headers={"Authorization": f"Bearer {token}"})[0] == 200
        pathweave("admin", "token", "revoke", "laptop", *data)
        status, body = ask(url, headers={"Authorization": f"Bearer {token}"})
    assert status == 401
    assert json.loads(body)["error"] == "the token has been revoked"
    listed = pathweave("admin", "token", "list", *data, "--json")
    [told] = json.loads(listed.stdout)["tokens"]
    assert (told["name"], told["state"]) == ("laptop", "revoked")
    assert token not in listed.stdout


def test_tokens_that_make_no_sense_are_refused(tmp_path):
    data = ("--data", tmp_path / "data")
    assert pathweave("admin", "token", "list", *data).stdout.startswith("no token")
    assert pathweave("admin", "token", "new", "../x", *data).returncode == 2
    assert pathweave("admin", "token", "new", "a", "--days", 0, *data).returncode == 2
    assert pathweave("admin", "token", "revoke", "a", *data).returncode == 2


def test_a_folder_that_is_not_there(tmp_path):
    done = pathweave("serve", tmp_path / "none", "--port", 0)
    assert done.returncode == 2
    assert "there is no folder" in done.stderr


def test_an_empty_folder_is_served_and_fills_up(tiny, tmp_path):
    (tmp_path / "bundles").mkdir()
    with started(tmp_path / "bundles", "--port", 0) as (_, line):
        assert line.endswith("serves no bundle yet\n")
        tiny.copy_to(tmp_path / "bundles" / "tiny")
        status, body = ask(line.split()[0])
    assert status == 200
    assert json.loads(body)["bundles"][0]["name"] == "tiny"


def test_the_second_signal_ends_it_at_once(bundles):
    with started(bundles, "--port", 0, "--json", "--drain-s", 60) as (process, line):
        host, port = json.loads(line)["url"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            connection.sendall(b"POST /v1/logs HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nnever whole")
            time.sleep(0.3)
            process.terminate()
            time.sleep(0.5)
            assert process.poll() is None
            process.terminate()
            assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_two_servers_share_a_postgresql_and_an_object_store(tiny, tmp_path, postgres, s3):
    state = {**s3.environment, "PATHWEAVE_DATABASE_URL": postgres.new()}
    store = ("--bundles", s3.new())
    published = pathweave("admin", "bundles", "publish", tiny.folder, *store, **state)
    assert published.stdout == "serves tiny 1\n"
    token = pathweave("admin", "token", "new", "laptop", **state).stdout.strip()
    for number in range(2):
        arguments = (*store, "--data", tmp_path / str(number), "--host", "127.0.0.1", "--port", 0, "--json")
        with started(*arguments, **state) as (_, line):
            told = json.loads(line)
            assert [bundle["name"] for bundle in told["bundles"]] == ["tiny"]
            assert ask(told["url"])[0] == 401
            assert ask(told["url"], headers={"Authorization": f"Bearer {token}"})[0] == 200
            assert ask(told["url"], "/ready")[0] == 200
