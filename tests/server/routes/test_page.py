from __future__ import annotations

import base64
import hashlib
import re

import msgspec
import pytest

from device_sdk.logs.adaptation_log import PlanChosen
from server.state.log_store import CheckedLine, check_lines

pytestmark = pytest.mark.replicas(3)


@pytest.fixture
def running(serve, tiny, tmp_path):
    """A server of a good and a broken bundle."""
    tiny.copy_to(tmp_path / "bundles" / "good")
    (tiny.copy_to(tmp_path / "bundles" / "bad<b>") / "manifest.json").write_text("{")
    return serve(tmp_path / "bundles")


def send(server, device, *lines, ndjson):
    return server.ask("/v1/logs", method="POST", body=ndjson(*lines), headers={"Pathweave-Device": device})


def test_an_empty_server_says_what_to_do(serve, tmp_path):
    (tmp_path / "empty").mkdir()
    page = serve(tmp_path / "empty").ask("/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"No bundle yet" in page.body
    assert b"--upload" in page.body


@pytest.mark.embedded
def test_bundles_and_why_one_is_not_served(running, tiny_bundle):
    page = running.ask("/").body.decode()
    assert "<td>tiny</td>" in page
    assert "signed" in page
    assert "x1-pooled (at 1)" in page
    assert tiny_bundle.manifest.name in page
    assert "bad&lt;b&gt;" in page
    assert "bad<b>" not in page
    assert "not served" in page


def test_devices_with_their_plan_and_whether_it_keeps_the_budget(running, log_line, ndjson, tiny_bundle):
    digest = {"bundle": running.services.bundles.find("tiny").bundle.digest}
    send(running, "quick-one", {**log_line(1), **digest}, {**log_line(2, "adapted"), **digest}, ndjson=ndjson)
    slow = log_line(3, "adapted", measured_ms=7.25, subnet="o0 o1 m2-4 o4")
    send(running, "slow-one", slow, ndjson=ndjson)
    rows = {
        cells[0]: cells
        for row in re.findall(r"<tr>(.*?)</tr>", running.ask("/").body.decode(), flags=re.DOTALL)
        if (cells := [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row, flags=re.DOTALL)])
    }
    assert rows["quick-one"][1] == "tiny 1"
    assert rows["quick-one"][3:] == ["o0 m1-4 o4", "1.5", "2", "–"]
    assert rows["slow-one"][1] == "000000000000…"
    assert rows["slow-one"][3:] == ["o0 o1 m2-4 o4", "7.25", "2", "–"]
    assert '<td class="number bad">7.25</td>' in running.ask("/").body.decode()


def test_the_kind_of_a_chosen_plan_and_what_it_asks_about_are_shown(running, log_line, ndjson):
    chosen = PlanChosen(
        plan_kind="exits + ask early",
        subnet="o0 m1-4 o4",
        optimise="latency_ms",
        limits={"accuracy": 0.9},
        considered=100,
        samples=300,
        accuracy=0.91,
        latency_ms=2.0,
        energy_mj=None,
        bytes_sent=400.0,
        share_early=0.5,
        share_asked=0.2,
        share_abstained=0.0,
        notes=(),
        share_asked_early=0.15,
        saved={"latency_ms": 0.4},
    )
    send(running, "asker", {**log_line(1), "event": msgspec.to_builtins(chosen)}, ndjson=ndjson)
    page = running.ask("/").body.decode()
    assert "exits + ask early, asks about 20%, 15% from exits: o0 m1-4 o4" in page
    assert "saved latency_ms 0.4" in page


def test_dropped_lines_are_reported(serve, tiny, log_line, ndjson):
    server = serve(tiny.folder, keep_log_lines=3)
    send(server, "a", *(log_line(minute) for minute in range(5)), ndjson=ndjson)
    assert '<td class="number">2</td></tr>' in server.ask("/").body.decode()
    assert server.ask("/v1/devices").json()["devices"][0]["dropped"] == 2


def test_the_latest_events_come_first(running, log_line, ndjson):
    send(running, "a", log_line(5), log_line(70, "adapted"), ndjson=ndjson)
    page = running.ask("/").body.decode()
    assert page.index("2026-05-01 01:10:00") < page.index("2026-05-01 00:05:00")
    assert "measured_ms 1.5" in page


def test_what_devices_send_is_text_and_never_markup(running, log_line, ndjson):
    send(running, "a", log_line(1, subnet="<script>alert(1)</script>"), ndjson=ndjson)
    line = check_lines(ndjson(log_line(2)), max_line_bytes=10_000)[0]
    # No device can have this name through the address; the page does not rely on that.
    running.services.logs.add("<script>alert(2)</script>", [CheckedLine(line.digest, line.time, line.line)])
    page = running.ask("/").body.decode()
    assert page.count("<script") == 1  # its own
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;script&gt;alert(2)" in page


def test_a_long_plan_is_cut(running, log_line, ndjson):
    send(running, "a", log_line(1, subnet="o1 " * 5000), ndjson=ndjson)
    assert len(running.ask("/").body) < 20_000


def test_nothing_but_the_pages_own_style_and_script_may_load(running):
    page = running.ask("/")
    style = re.search(r"<style>(.*?)</style>", page.body.decode(), flags=re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy
    assert re.findall(r"(?:src|href)=[^\s>]*", page.body.decode()) == ['src="/page/script.js"']
    assert not re.search(r"https?://|style=|@import|url\(", page.body.decode())
    assert page.headers["x-content-type-options"] == "nosniff"
