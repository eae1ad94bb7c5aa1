from __future__ import annotations

import json
import os

import pytest

from server.access.scopes import Scope

JSON_TYPE = {"Content-Type": "application/json"}
OPEN_ADDRESSES = ("/v1/jobs", "/v1/jobs/x", "/v1/jobs/x/log")


def form(*parts):
    """A multipart body: parts are (name, file name or None, bytes)."""
    body = b""
    for name, file_name, data in parts:
        told = f'; filename="{file_name}"' if file_name else ""
        body += f'--frontier\r\nContent-Disposition: form-data; name="{name}"{told}\r\n\r\n'.encode() + data + b"\r\n"
    return body + b"--frontier--\r\n"


def post_form(server, body, **headers):
    return server.ask(
        "/v1/jobs",
        method="POST",
        body=body,
        headers={"Content-Type": "multipart/form-data; boundary=frontier", **headers},
    )


def job_folders(tmp_path):
    return [path for path in (tmp_path / "data" / "jobs").iterdir() if path.is_dir()]


@pytest.fixture
def weights(safetensors_bytes):
    return safetensors_bytes({"w": ("F32", [200_000], bytes(800_000)), "n": ("I64", [1], b"\0" * 8)})


@pytest.fixture
def over(packaging_server, eventually):
    """Waits until a job is over and returns what the server says of it."""

    def wait(job_id):
        def found():
            told = packaging_server.ask(f"/v1/jobs/{job_id}").json()
            return told if told["state"] not in ("queued", "running") else None

        return eventually(found)

    return wait


@pytest.fixture
def at_work(packaging_server, eventually):
    def wait(job_id):
        return eventually(lambda: packaging_server.ask(f"/v1/jobs/{job_id}").json()["progress"])

    return wait


@pytest.mark.replicas(3)
def test_a_job_from_the_request_to_the_bundle(packaging_server, job_request, over, eventually):
    server = packaging_server
    reply = server.post("/v1/jobs", job_request())
    assert reply.status == 202
    told = reply.json()
    assert reply.headers["location"] == f"/v1/jobs/{told['id']}"
    assert (told["name"], told["model"], told["recipe"]) == ("digits", "zoo:makes", {"steps": 5})
    assert (told["data"], told["validation"], told["weights_sha256"]) == ("digits#train", "digits#search", None)
    done = over(told["id"])
    assert (done["state"], done["version"], done["error"], done["progress"]) == ("done", None, None, None)
    assert done["created"] <= done["started"] <= done["finished"]
    assert (done["bundle"], done["published"]) == ("jobs/127.0.0.1/digits", None)
    assert server.ask("/v1/bundles").json()["bundles"] == []
    done = server.post(f"/v1/jobs/{told['id']}/publish", {}).json()
    assert (done["bundle"], done["version"], done["published_by"]) == ("digits", 1, "127.0.0.1")
    # Other servers see it within two seconds.
    bundle = eventually(lambda: (reply := server.ask("/v1/bundles/digits")).status == 200 and reply.json())
    assert (bundle["version"], bundle["digest"]) == (1, done["digest"])
    log = server.ask(f"/v1/jobs/{told['id']}/log")
    assert log.headers["content-type"].startswith("text/plain")
    assert b"asked for zoo:makes" in log.body
    listed = server.ask("/v1/jobs").json()
    assert listed["jobs"] == [done]
    assert "digits#train" in listed["data"]


@pytest.mark.replicas(3)
def test_a_failed_job_says_why(packaging_server, job_request, over):
    told = over(packaging_server.post("/v1/jobs", job_request("fails")).json()["id"])
    assert (told["state"], told["error"], told["hint"]) == ("failed", "digits#train is wrong", "see out")


@pytest.mark.replicas(3)
def test_progress_and_cancelling(packaging_server, job_request, at_work):
    server = packaging_server
    address = server.post("/v1/jobs", job_request("waits")).headers["location"]
    progress = at_work(address.rpartition("/")[2])
    assert progress == {"task": "tune", "share": 0.25, "note": "loss 0.5", "elapsed_s": 1.5}
    for _ in range(2):
        reply = server.ask(address, method="DELETE")
        assert (reply.status, reply.json()["state"]) == (200, "cancelled")
    assert server.ask(address).json()["state"] == "cancelled"
    assert server.ask(f"{address}/log").status == 404


@pytest.mark.replicas(3)
@pytest.mark.parametrize("as_file", [False, True])
def test_weights_come_along_in_a_form(packaging_server, job_request, over, weights, as_file):
    job = json.dumps(job_request()).encode()
    reply = post_form(packaging_server, form(("job", "job.json" * as_file, job), ("weights", "w.safetensors", weights)))
    assert reply.status == 202, reply.body
    digest = reply.json()["weights_sha256"]
    assert len(digest) == 64
    assert over(reply.json()["id"])["state"] == "done"


def test_the_worker_gets_the_very_bytes(packaging_server, job_request, at_work, weights, tmp_path):
    job = json.dumps(job_request("waits")).encode()
    reply = post_form(packaging_server, form(("weights", "../../x", weights), ("job", None, job)))
    at_work(reply.json()["id"])
    [folder] = job_folders(tmp_path)
    assert (folder / "weights.safetensors").read_bytes() == weights
    assert not [path for path in folder.iterdir() if path.name.startswith("part")]


@pytest.mark.replicas(3)
def test_a_form_may_come_without_weights(packaging_server, job_request):
    assert post_form(packaging_server, form(("job", None, json.dumps(job_request()).encode()))).status == 202


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "users_models:build"}, "requests cannot contain code"),
        ({"model": "/srv/model.pth"}, "requests cannot contain code"),
        ({"model": "timm:hf-hub:a/b"}, "cannot be the name of a timm model"),
        ({"data": "/srv/cifar"}, "has no data"),
        ({"validation": "cifar"}, "has no data"),
        ({"name": "../../x"}, "cannot be the name of a bundle"),
        ({"name": ".pathweave-server"}, "cannot be the name of a bundle"),
    ],
)
def test_what_is_not_acceptable_is_refused_with_the_reason(packaging_server, job_request, tmp_path, changes, words):
    reply = packaging_server.post("/v1/jobs", job_request(**changes))
    assert reply.status == 422
    assert words in reply.json()["error"]
    assert packaging_server.ask("/v1/jobs").json()["jobs"] == []
    assert job_folders(tmp_path) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"name": "a"}', b"null", b"\xff\xfe"])
def test_what_is_no_job_is_malformed(packaging_server, tmp_path, body):
    assert packaging_server.ask("/v1/jobs", method="POST", body=body, headers=JSON_TYPE).status == 400
    assert job_folders(tmp_path) == []


def test_a_job_that_is_too_large(packaging_server, job_request):
    request = json.dumps(job_request(recipe={"x": "a" * 100_000})).encode()
    assert packaging_server.ask("/v1/jobs", method="POST", body=request, headers=JSON_TYPE).status == 413
    assert post_form(packaging_server, form(("job", None, request))).status == 413
    assert post_form(packaging_server, form(("job", "job.json", request))).status == 413


def test_broken_weights_are_refused(packaging_server, job_request, tmp_path, weights):
    job = json.dumps(job_request()).encode()
    for data in (weights[:-1], weights + b"x", b"", b"\x80\x02}q\x00."):
        reply = post_form(packaging_server, form(("job", None, job), ("weights", "w.safetensors", data)))
        assert reply.status == 422
        assert "no safetensors file" in reply.json()["error"]
    assert job_folders(tmp_path) == []


def test_weights_that_are_too_large_are_refused(
    serve, bundles, fake_packager, job_request, tmp_path, safetensors_bytes
):
    server = serve(bundles, package_command=fake_packager, max_weights_bytes=100_000)
    job = json.dumps(job_request()).encode()
    for size in (100_001, 400_000):
        weights = safetensors_bytes({"w": ("U8", [size], b"\0" * size)})
        assert post_form(server, form(("job", None, job), ("weights", "w", weights))).status == 413
    assert job_folders(tmp_path) == []


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("weights", "w", b"x")],
        [("job", None, b"{}"), ("other", None, b"x")],
        [("job", None, b"{}"), ("job", None, b"{}")],
        [("job", None, b"{}"), ("weights", None, b"x")],
        [("job", None, b"{}"), ("weights", "w", b"x"), ("weights", "w", b"x")],
    ],
)
def test_a_form_with_other_parts_is_malformed(packaging_server, tmp_path, parts):
    assert post_form(packaging_server, form(*parts)).status == 400
    assert job_folders(tmp_path) == []


def test_a_form_that_is_broken(packaging_server, job_request, tmp_path):
    whole = form(("job", None, json.dumps(job_request()).encode()))
    for body in (whole[:-12], b"", b"no form", os.urandom(500)):
        assert post_form(packaging_server, body).status == 400
    assert post_form(packaging_server, whole, **{"Content-Type": "multipart/form-data"}).status == 400
    assert post_form(packaging_server, whole, **{"Content-Encoding": "gzip"}).status == 415
    assert post_form(packaging_server, form(*[("job", None, b"{}")] * 9)).status == 413
    assert job_folders(tmp_path) == []


@pytest.mark.replicas(3)
def test_only_so_many_jobs_wait(serve, bundles, fake_packager, job_request, eventually, let_go):
    server = serve(bundles, package_command=fake_packager, max_queued_jobs=2)
    first = server.post("/v1/jobs", job_request("waits")).json()["id"]
    eventually(lambda: server.ask(f"/v1/jobs/{first}").json()["state"] == "running")
    assert [server.post("/v1/jobs", job_request()).status for _ in range(2)] == [202, 202]
    refused = server.post("/v1/jobs", job_request())
    assert (refused.status, refused.headers["retry-after"]) == (503, "60")
    assert "2 jobs are waiting" in refused.json()["error"]
    let_go()
    eventually(lambda: server.post("/v1/jobs", job_request()).status == 202)


@pytest.mark.parametrize("path", ["/v1/jobs/unknown", "/v1/jobs/..", "/v1/jobs/%2e%2e%2f", "/v1/jobs/unknown/log"])
def test_unknown_jobs_are_not_found(packaging_server, path):
    assert packaging_server.ask(path).status == 404
    if not path.endswith("log"):
        assert packaging_server.ask(path, method="DELETE").status == 404


def test_a_server_of_one_bundle_has_no_place_for_another(serve, tiny, job_request, fake_packager):
    reply = serve(tiny.folder, package_command=fake_packager).post("/v1/jobs", job_request())
    assert reply.status == 409
    assert "serves a single bundle" in reply.json()["error"]


def test_a_server_may_take_no_jobs(serve, bundles, job_request, fake_packager):
    reply = serve(bundles, package_command=fake_packager, jobs_at_once=0).post("/v1/jobs", job_request())
    assert (reply.status, reply.json()["hint"]) == (409, "it was started with --jobs 0")


def test_the_second_server_of_a_data_folder_takes_none(packaging_server, serve, bundles, job_request):
    second = serve(bundles)
    assert "another server" in second.post("/v1/jobs", job_request()).json()["error"]
    assert second.post("/v1/jobs", job_request()).status == 409
    assert packaging_server.post("/v1/jobs", job_request()).status == 202
    assert len(second.ask("/v1/jobs").json()["jobs"]) == 1


def test_a_broken_data_file_is_named(packaging_server, job_request, tmp_path):
    (tmp_path / "data" / "data.toml").write_text("a =")
    reply = packaging_server.post("/v1/jobs", job_request())
    assert reply.status == 500
    assert "data.toml is not valid TOML" in reply.json()["error"]


def test_jobs_ask_for_a_token_like_everything_else(serve, bundles, fake_packager, job_request):
    server = serve(bundles, package_command=fake_packager, token="secret")
    for address in OPEN_ADDRESSES:
        assert server.ask(address).status == 401
        assert server.ask(address, method="DELETE").status == 401
    assert server.post("/v1/jobs", job_request()).status == 401
    assert server.post("/v1/jobs", job_request(), Authorization="Bearer secret").status == 202


def test_a_password_from_a_browser_starts_no_job(serve, bundles, fake_packager, job_request):
    server = serve(bundles, package_command=fake_packager, token="secret")
    assert server.post("/v1/jobs", job_request(), Authorization="Basic bWU6c2VjcmV0").status == 401


def test_the_log_is_its_end_only(packaging_server, job_request, over):
    job = over(packaging_server.post("/v1/jobs", job_request()).json()["id"])["id"]
    log = packaging_server.services.runner.workplace(job).log
    log.write_text("".join(f"line {n}\n" for n in range(20_000)))
    shown = packaging_server.ask(f"/v1/jobs/{job}/log").body.decode()
    assert len(shown) <= 65_536
    assert shown.splitlines()[0].startswith("line ")
    assert shown.endswith("line 19999\n")


def test_only_an_operator_raises_a_priority(serve, bundles, fake_packager, job_request):
    server = serve(bundles, package_command=fake_packager)
    tokens = server.services.tokens
    headers = {
        scope: {"Authorization": f"Bearer {tokens.new(scope.name, days=1, scope=scope)}"}
        for scope in (Scope.PACKAGE, Scope.OPERATOR)
    }
    refused = server.post("/v1/jobs", job_request(priority=1), **headers[Scope.PACKAGE])
    assert (refused.status, "only an operator" in refused.json()["error"]) == (403, True)
    assert server.post("/v1/jobs", job_request(priority=-1), **headers[Scope.PACKAGE]).json()["priority"] == -1
    assert server.post("/v1/jobs", job_request(priority=1), **headers[Scope.OPERATOR]).json()["priority"] == 1
    for wrong in ({"priority": 101}, {"priority": "high"}, {"needs": ["A"]}, {"needs": ["x"] * 9}):
        assert server.post("/v1/jobs", job_request(**wrong), **headers[Scope.OPERATOR]).status == 400
