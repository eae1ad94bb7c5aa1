from __future__ import annotations

import shutil

import pytest

from device_sdk.errors import RuntimeFailedError

JSON = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 20, 20, 3], "data": [0] * 1200}]}


@pytest.mark.parametrize("address", ["/nothing", "/v1/nothing", "/v2/nothing", "/v2/models/tiny/nothing", "/static/x"])
def test_no_such_address(server, address):
    reply = server.ask(address)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/json")
    assert reply.json() == {"error": "there is nothing at this address"}


def test_no_such_method(server):
    reply = server.ask("/v2/models/tiny/infer", method="DELETE")
    assert reply.status == 405
    assert reply.json() == {"error": "this address does not take DELETE"}
    assert "POST" in reply.headers["allow"]


def test_a_failure_of_ours_is_500_and_tells_no_details(serve, tiny, gated, caplog):
    for failure in (RuntimeFailedError("/secret/path is broken"), ZeroDivisionError("/secret/path")):
        gated.failure = failure
        gated.gate.set()
        reply = serve(tiny.folder, runtime=gated).post("/v2/models/tiny:images/infer", JSON)
        assert reply.status == 500
        assert set(reply.json()) == {"error"}
        assert "secret" not in reply.body.decode()
        assert "/secret/path" in caplog.text  # the log has them


@pytest.mark.embedded
def test_a_disk_that_cannot_be_written_is_503(serve, tiny, tmp_path, log_line, ndjson):
    server = serve(tiny.folder, data_folder=tmp_path / "own")
    shutil.rmtree(tmp_path / "own")
    body, headers = ndjson(log_line()), {"Pathweave-Device": "a"}
    reply = server.ask("/v1/logs", method="POST", body=body, headers=headers)
    assert reply.status == 503
    assert reply.headers["retry-after"].isdigit()
    assert str(tmp_path) not in reply.body.decode()
