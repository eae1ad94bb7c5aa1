from __future__ import annotations

import base64
import re
import shutil
import subprocess

import pytest

from server.page.reply import SCRIPT as _SCRIPT

SCRIPT = "/page/script.js"


@pytest.fixture
def add(packaging_server, job_request, eventually):
    """Asks for a job and waits until it is in a state."""

    def ask(does, state, **changes):
        address = packaging_server.post("/v1/jobs", job_request(does, **changes)).headers["location"]
        eventually(lambda: packaging_server.ask(address).json()["state"] == state)
        return address

    return ask


def page(server, path="/page/jobs", **headers):
    reply = server.ask(path, headers=headers)
    assert reply.status == 200
    return reply.body.decode()


def rows(html):
    """The cells of each job by its state."""
    found = [
        [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL)
    ]
    return {cells[4]: cells for cells in found}


def test_without_jobs_it_says_how_to_ask_for_one(packaging_server):
    assert "POST /v1/jobs" in page(packaging_server)


def test_each_job_with_its_state_and_progress(packaging_server, add, eventually):
    published = add("makes", "done")
    assert rows(page(packaging_server))["done"][0] == "jobs/127.0.0.1/digits"
    packaging_server.post(f"{published}/publish", {})
    add("crashes", "failed")
    add("waits", "running")
    eventually(lambda: "tune, 25%, loss 0.5" in page(packaging_server))
    shown = rows(page(packaging_server))
    assert shown["done"][:2] == ["digits 1", "zoo:makes"]
    assert shown["failed"][4:] == ["failed", "–", "the worker ended with status 3"]
    assert shown["running"][0] == "jobs/127.0.0.1/digits"
    assert shown["running"][4:] == ["running", "25%", "tune, 25%, loss 0.5"]
    assert 'class="fill" width="25.00"' in page(packaging_server)
    assert 'data-refresh-s="1"' in page(packaging_server)


def test_one_job_with_what_was_asked_for_and_its_log(packaging_server, add):
    job = add("makes", "done").rpartition("/")[2]
    shown = page(packaging_server, f"/page/jobs/{job}")
    assert "zoo:makes" in shown
    assert "<pre" in shown
    assert 'data-refresh-s="5"' in shown
    assert packaging_server.ask("/page/jobs/none").status == 404


def test_an_error_is_text_and_never_markup(packaging_server, job_request, add):
    add("crashes", "failed")
    with packaging_server.services.jobs._database.writing() as connection:
        connection.exec_driver_sql("UPDATE jobs SET error = '<script>alert(1)</script>'")
    shown = page(packaging_server)
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert(1)" in shown


def test_only_the_pages_own_script_may_run(packaging_server):
    reply = packaging_server.ask("/")
    policy = reply.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"<script.*?</script>", reply.body.decode()) == [f'<script src="{SCRIPT}" defer></script>']
    script = packaging_server.ask(SCRIPT)
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"innerHTML|eval|https?://", script.body.decode())


def test_the_script_needs_what_the_page_has(packaging_server):
    shown = page(packaging_server)
    names = re.findall(r'getElementById\("(\w+)"\)', _SCRIPT)
    assert names
    for name in names:
        assert f'id="{name}"' in shown
    live = re.findall(r"<section[^>]*data-live[^>]*>", shown)
    assert live
    assert all('id="' in section for section in live)


def test_the_script_is_javascript(tmp_path):
    if shutil.which("node") is None:
        pytest.skip("needs node")
    (tmp_path / "page.js").write_text(_SCRIPT)
    done = subprocess.run(["node", "--check", tmp_path / "page.js"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_behind_a_token_a_browser_sees_page_script_and_jobs(serve, bundles):
    server = serve(bundles, token="secret")
    basic = {"Authorization": "Basic " + base64.b64encode(b"me:secret").decode()}
    assert server.ask("/").status == 401
    for path in ("/", "/page/jobs", SCRIPT):
        assert server.ask(path, headers=basic).status == 200
    assert server.ask("/page/jobs").status == 401
    assert server.ask("/v1/jobs", headers=basic).status == 401
