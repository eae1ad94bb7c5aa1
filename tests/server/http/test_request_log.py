from __future__ import annotations

import json
import logging

import pytest
from flask import Flask, abort

from server.http.request_log import REQUEST_ID, JsonLines, identify_requests


@pytest.fixture
def app():
    app = Flask(__name__)
    identify_requests(app)

    @app.get("/fine")
    def fine():
        logging.getLogger("part").warning("something about %s", "this")
        return "fine"

    @app.get("/gone")
    def gone():
        abort(410)

    return app.test_client()


@pytest.fixture
def lines(caplog):
    """Reads what was logged, as JSON."""
    caplog.set_level(logging.INFO, "pathweave.requests")
    caplog.handler.setFormatter(JsonLines())
    return lambda: [json.loads(line) for line in caplog.text.splitlines()]


def test_each_request_has_an_id_of_its_own_or_that_of_the_proxy(app):
    first, second = (app.get("/fine").headers[REQUEST_ID] for _ in range(2))
    assert first != second
    assert app.get("/fine", headers={REQUEST_ID: "proxy-1.a"}).headers[REQUEST_ID] == "proxy-1.a"


@pytest.mark.parametrize("sent", ["", "with space", "x" * 65, '"quoted"'])
def test_an_id_that_could_confuse_a_log_is_replaced(app, sent):
    assert app.get("/fine", headers={REQUEST_ID: sent}).headers[REQUEST_ID] != sent


def test_a_request_and_what_it_logs_share_the_id(app, lines):
    app.get("/fine?token=secret", headers={REQUEST_ID: "one"})
    warned, answered = lines()
    assert (warned["message"], warned["level"], warned["request_id"]) == ("something about this", "WARNING", "one")
    assert (answered["method"], answered["path"], answered["status"]) == ("GET", "/fine", 200)
    assert (answered["request_id"], answered["client"]) == ("one", None)
    assert answered["ms"] >= 0
    assert "secret" not in json.dumps(answered)


def test_what_is_refused_is_logged_too(app, lines):
    app.get("/gone")
    [answered] = lines()
    assert answered["status"] == 410


def test_an_exception_stays_in_its_line():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord("a", logging.ERROR, "", 0, "failed", (), (ValueError, error, error.__traceback__))
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "two" in json.loads(line)["exception"]
