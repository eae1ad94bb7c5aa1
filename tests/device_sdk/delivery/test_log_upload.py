from __future__ import annotations

import contextlib
import json

import pytest

from device_sdk.delivery.log_upload import BODY_MAX_BYTES, LINE_MAX_BYTES, UploadResult, upload_log
from device_sdk.errors import ProtocolError, RefusedError, TransferError, UsageError
from device_sdk.files.atomic import decode_json
from device_sdk.logs.adaptation_log import AdaptationLog, LogLine, Opened
from device_sdk.transports import make_transport


def stored(accepted: int, duplicates: int = 0) -> tuple[int, bytes]:
    return 200, json.dumps({"accepted": accepted, "duplicates": duplicates}).encode()


@pytest.fixture
def log(tmp_path):
    log = AdaptationLog(tmp_path / "adaptation.jsonl", bundle="b" * 64, runtime="fake")
    for number in range(3):
        log.write(Opened(subnet=f"o{number}", restored=False))
    return log.path


def test_the_lines_arrive_as_they_are_with_the_name_of_the_device(log, server, transport):
    server.post_answers = [stored(2, 1)]
    assert upload_log(log, server.root + "/", transport, device="device-1.a") == UploadResult(2, 1)
    path, headers, body = server.posts[0]
    assert path == "/v1/logs"
    assert headers["pathweave-device"] == "device-1.a"
    assert body == log.read_bytes()
    assert [decode_json(line, LogLine).event.subnet for line in body.splitlines()] == ["o0", "o1", "o2"]


def test_a_line_that_was_cut_short_is_left_out(log, server, transport):
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"schema": 1, "ti')
    server.post_answers = [stored(3)]
    upload_log(log, server.root, transport, device="d")
    assert server.posts[0][2] == whole


def test_the_older_files_of_a_log_are_sent_first(tmp_path, server, transport):
    log = AdaptationLog(tmp_path / "log", bundle="b" * 64, runtime="fake", max_bytes=500)
    for number in range(6):
        log.write(Opened(subnet=f"o{number}", restored=False))
    files = [log.path.with_name(name) for name in ("log.2", "log.1", "log")]
    server.post_answers = [stored(2)] * len(files)
    assert upload_log(log.path, server.root, transport, device="d") == UploadResult(6, 0)
    assert [body for _, _, body in server.posts] == [file.read_bytes() for file in files]


def test_an_empty_log_sends_nothing(tmp_path, server, transport):
    (tmp_path / "log").write_bytes(b"")
    assert upload_log(tmp_path / "log", server.root, transport, device="d") == UploadResult(0, 0)
    assert server.posts == []


def test_a_long_log_goes_in_bodies_of_whole_lines(tmp_path, server, transport):
    lines = [json.dumps({"number": n, "text": "x" * 900}).encode() + b"\n" for n in range(2500)]
    (tmp_path / "log").write_bytes(b"".join(lines))
    server.post_answers = [stored(5, 1)] * 3
    assert upload_log(tmp_path / "log", server.root, transport, device="d") == UploadResult(15, 3)
    bodies = [body for _, _, body in server.posts]
    assert b"".join(bodies) == b"".join(lines)
    assert all(len(body) <= BODY_MAX_BYTES and body.endswith(b"\n") for body in bodies)


def test_a_refusal_says_which_lines_and_repeats_the_servers_words(tmp_path, server, transport):
    line = b'{"text": "' + b"x" * 900_000 + b'"}\n'
    (tmp_path / "log").write_bytes(b"".join(line[:60_000] + b"\n" for _ in range(20)))
    server.post_answers = [stored(16), (422, b'{"error": "line 3: no field bundle"}')]
    with pytest.raises(RefusedError, match=r"log, from line 17: .*422: line 3: no field bundle") as caught:
        upload_log(tmp_path / "log", server.root, transport, device="d")
    assert caught.value.status == 422


def test_a_line_over_the_limit_is_named(tmp_path, server, transport):
    (tmp_path / "log").write_bytes(b"{}\n" + b"x" * LINE_MAX_BYTES + b"\n")
    with pytest.raises(UsageError, match="line 2"):
        upload_log(tmp_path / "log", server.root, transport, device="d")
    assert server.posts == []


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b'{"accepted": "all", "duplicates": 0}', b'{"accepted":-1,"duplicates":0}']
)
def test_an_answer_that_is_none_is_a_protocol_error(log, server, transport, answer):
    server.post_answers = [(200, answer)]
    with pytest.raises(ProtocolError):
        upload_log(log, server.root, transport, device="d")


@pytest.mark.parametrize("device", ["", "a b", "a/b", "a\r\nX: 1", "x" * 129, "gerät"])
def test_a_name_that_no_device_can_have_is_refused(log, server, transport, device):
    with pytest.raises(UsageError, match="name of a device"):
        upload_log(log, server.root, transport, device=device)


def test_a_missing_log_is_a_usage_error(tmp_path, server, transport):
    with pytest.raises(UsageError, match="nowhere"):
        upload_log(tmp_path / "nowhere", server.root, transport, device="d")


def test_a_server_that_is_not_there_is_a_transfer_error(log):
    with contextlib.closing(make_transport("http://127.0.0.1:1")) as transport, pytest.raises(TransferError):
        upload_log(log, "http://127.0.0.1:1", transport, device="d")
